"""Rows of a data set: one form for all of them, and what makes one valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MEDIA_COLUMNS = ("images", "videos", "audios")
PROMPT_COLUMNS = ("query", "prompt", "question", "problem", "instruction")
"""Columns of plain text that stand for one message of the user, as ms-swift reads them
(swift/dataset/preprocessor/core.py, ResponsePreprocessor)."""

RESPONSE_COLUMNS = ("response", "output", "answer", "completion")
TOOL_ROLES = ("tool_call", "tool", "tool_response")  # their contents are JSON to ms-swift
ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names

Store = Callable[[bytes], Path]
"""Writes an image that is embedded in the data set to a file, and returns its path."""


def lines(source: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line that is not empty. Bytes that are not UTF-8 stay recognisable:
    `check_row` finds them."""
    with source.open(encoding="utf-8-sig", errors="surrogateescape") as content:
        for number, line in enumerate(content, start=1):
            if line.strip():
                yield number, line


def parse(line: str) -> tuple[Any, str]:
    """Return the JSON value of a line, or the reason why there is none."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return None, "not valid UTF-8"
    try:
        return json.loads(line, parse_constant=_refuse_constant), ""
    except (ValueError, RecursionError):
        return None, "not valid JSON"


def _refuse_constant(name: str) -> Any:
    # Python reads NaN and Infinity, pyarrow (which ms-swift reads JSON with) does not
    raise ValueError(name)


def check_row(line: str, directory: Path, *, answered: bool = False) -> tuple[Row | None, str]:
    """Return the row of a JSON line as `normalise` gives it, or the reason why it is invalid."""
    row, reason = parse(line)
    return (None, reason) if reason else normalise(row, directory, answered=answered)


def normalise(
    row: Any, directory: Path, *, answered: bool = False, store: Store | None = None
) -> tuple[Row | None, str]:
    """Bring a row to the form that GRPO reads, or say why it is invalid.

    The result has `messages` (role and content), `images`, `videos` and `audios` as lists of absolute paths
    or URLs where the row has any, and all other columns as they are. `answered` rows are conversations to
    learn from (SFT): they end with the assistant, prompts do not. Relative paths start at `directory`.
    """
    if not isinstance(row, dict):
        return None, "not a JSON object"
    row = dict(row)
    messages = _messages(row, answered)
    reason = _check_messages(messages, answered) or _join_parts(row, messages) or _add_system(row, messages)
    if reason:
        return None, reason
    media, reason = _media(row, directory, store)
    if reason:
        return None, reason
    return {"messages": messages, **media, **row}, ""


def _messages(row: Row, answered: bool) -> Any:
    """Take the conversation out of a row."""
    for name in ("messages", "conversations"):
        if row.get(name) is not None:
            messages = row.pop(name)
            return [_message(message) for message in messages] if isinstance(messages, list) else messages
    prompt = _take(row, PROMPT_COLUMNS)
    if isinstance(prompt, list):
        return [_message(message) for message in prompt]
    if prompt is None:
        return None
    if context := row.pop("input", None):  # Alpaca: the text that the instruction is about
        prompt = f"{prompt}\n{context}"
    messages = [{"role": "user", "content": prompt}]
    if answered:
        messages.append({"role": "assistant", "content": _take(row, RESPONSE_COLUMNS)})
    return messages


def _take(row: Row, names: tuple[str, ...]) -> Any:
    name = next((name for name in names if row.get(name) is not None), "")
    return row.pop(name, None)


def _message(message: Any) -> Any:
    if isinstance(message, dict) and "from" in message and "value" in message:
        role = message["from"]
        return {"role": ROLES.get(role, role), "content": message["value"]}
    return message


def _check_messages(messages: Any, answered: bool) -> str:
    if not isinstance(messages, list) or not messages:
        return "no messages"
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return "a message without role"
        content = message.get("content")
        if (
            not isinstance(content, str | list)
            or not content
            or (isinstance(content, str) and content.isspace())
        ):
            return "a message without content"
    if not answered and messages[-1]["role"] == "assistant":
        # ms-swift would cut the answer off without a word; as a prompt it leaks the solution
        return "the last message is the assistant's"
    if answered and messages[-1]["role"] != "assistant":
        return "the last message is not the assistant's"
    return ""


def _join_parts(row: Row, messages: list[Row]) -> str:
    """Make text of contents that are lists of parts, as ms-swift does (swift/template/template_inputs.py,
    remove_messages_media): a placeholder for each image, video and audio, which go to their columns.

    Else their files would not be looked for, and an evaluation would not find its prompts again.
    """
    found: Row = {column: [] for column in MEDIA_COLUMNS}
    for place, message in enumerate(messages):
        parts = message["content"]
        if isinstance(parts, str) or isinstance(parts[0], int) or message["role"] in TOOL_ROLES:
            continue
        text = ""
        for part in parts:
            kind = part.get("type") if isinstance(part, dict) else None
            name = str(kind).removesuffix("_url")
            if kind == "text" and isinstance(part.get("text"), str):
                text += part["text"]
            elif f"{name}s" in found:
                value = part.get(kind)
                text += f"<{name}>"
                found[f"{name}s"] += [value["url"] if isinstance(value, dict) and "url" in value else value]
            else:
                return f"a part of a message that is no text, image, video or audio: {kind!r}"
        if not text.strip():
            return "a message without content"
        messages[place] = {**message, "content": text}
    for column, items in found.items():
        # a part without a value stands for the next item of the column
        if given := [item for item in items if item]:
            if row.get(column):
                return f"{column}: in the messages and in the row"
            row[column] = given
    return ""


def _add_system(row: Row, messages: list[Row]) -> str:
    """Turn a column `system` into the first message."""
    system = row.pop("system", None)
    if system is None or system == "":
        return ""
    if not isinstance(system, str):
        return "system: not text"
    if messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return ""


def _media(row: Row, directory: Path, store: Store | None) -> tuple[Row, str]:
    """Take the media columns out of a row."""
    found: Row = {}
    for column in MEDIA_COLUMNS:
        items = row.pop(column, None) or row.pop(column.removesuffix("s"), None) or []
        items = [items] if isinstance(items, str | dict) else items
        if not isinstance(items, list):
            return {}, f"{column}: not a list"
        paths = []
        for item in items:
            path, reason = _path(item, directory, store)
            if reason:
                return {}, f"{column}: {reason}"
            paths.append(path)
        if paths:
            found[column] = paths
    return found, ""


def _path(item: Any, directory: Path, store: Store | None) -> tuple[str, str]:
    """Absolute path or URL of an image, video or audio; `{path, bytes}` is the form of `datasets`."""
    content = item.get("bytes") if isinstance(item, dict) else None
    if isinstance(content, bytes) and store is not None:
        return str(store(content)), ""
    name = item.get("path") if isinstance(item, dict) else item
    if not isinstance(name, str) or not name:
        return "", "not a path"
    if "://" in name or name.startswith("data:"):
        return name, ""
    path = (directory / name).absolute()
    return str(path), "" if path.is_file() else "file not found"
