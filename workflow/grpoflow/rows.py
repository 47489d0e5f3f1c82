"""Rows of a JSONL data set: reading, and what makes one valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEDIA_COLUMNS = ("images", "videos", "audios")


def lines(source: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line that is not empty."""
    with source.open(encoding="utf-8", errors="replace") as content:
        for number, line in enumerate(content, start=1):
            if line.strip():
                yield number, line


def check_row(line: str, directory: Path, *, answered: bool = False) -> tuple[dict[str, Any] | None, str]:
    """Return the row with media as absolute paths, or the reason why it is invalid.

    `answered` rows are conversations to learn from (SFT): they end with the assistant, prompts do not.
    """
    try:
        row = json.loads(line)
    except ValueError:
        return None, "not valid JSON"
    if not isinstance(row, dict):
        return None, "not a JSON object"
    reason = _check_messages(row.get("messages"), answered)
    if reason:
        return None, reason
    for column in MEDIA_COLUMNS:
        media = row.get(column) or []
        if not isinstance(media, list):
            return None, f"{column}: not a list"
        for index, item in enumerate(media):
            if isinstance(item, str) and "://" not in item:
                path = (directory / item).absolute()
                if not path.is_file():
                    return None, f"{column}: file not found"
                row[column][index] = str(path)
    return row, ""


def _check_messages(messages: Any, answered: bool) -> str:
    if not isinstance(messages, list) or not messages:
        return "no messages"
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return "a message without role"
        if not isinstance(message.get("content"), str | list) or not message["content"]:
            return "a message without content"
    if not answered and messages[-1]["role"] == "assistant":
        # ms-swift would cut the answer off without a word; as a prompt it leaks the solution
        return "the last message is the assistant's"
    if answered and messages[-1]["role"] != "assistant":
        return "the last message is not the assistant's"
    return ""
