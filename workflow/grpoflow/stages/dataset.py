"""Stage cache_dataset: frozen, validated prompts for GRPO and the tokenised conversations of SFT."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from grpoflow.commands.cache import cache_sft_dataset
from grpoflow.files import sha256

from .base import Stage, StageFailed, attempt_directory, finish

MEDIA_COLUMNS = ("images", "videos", "audios")


def cache_dataset(stage: Stage) -> None:
    """Freeze train and val, tokenise the SFT data.

    Raises:
        StageFailed: nothing valid is left, or rows are invalid and `data.on_invalid` is `refuse`.
    """
    data = stage.config.data
    with attempt_directory(stage) as work:
        rejected = Counter[str]()
        with (work / "rejected.jsonl").open("w", encoding="utf-8") as refused:
            # val first: a prompt that is in both is kept for evaluation and taken out of training
            held_out = _freeze(Path(data.val), work / "val.jsonl", refused, rejected, set())
            kept = _freeze(Path(data.train), work / "train.jsonl", refused, rejected, held_out)
        if rejected and data.on_invalid == "refuse":
            raise StageFailed(f"data.on_invalid is refuse, and rows are invalid: {dict(rejected)}")
        counts = {"train": len(kept), "val": len(held_out), "rejected": dict(rejected)}
        for split in ("train", "val"):
            if not counts[split]:
                raise StageFailed(f"no valid row is left in {getattr(data, split)}: {dict(rejected)}")
        facts: dict[str, Any] = {"counts": counts}
        if stage.config.sft is not None:
            cached = work / "sft"
            stage.run("export", cache_sft_dataset(stage.config, Path(stage.config.sft.dataset), cached))
            facts["sft_rows"] = _cached_rows(cached / "train")
        facts["sha256"] = {name: sha256(work / name) for name in ("train.jsonl", "val.jsonl")}
        stage.say(
            f"{counts['train']} training prompts, {counts['val']} held out, {sum(rejected.values())} rejected"
        )
        finish(stage, work, **facts)


def _freeze(source: Path, target: Path, refused: TextIO, rejected: Counter[str], other: set[str]) -> set[str]:
    """Copy the valid rows of a JSONL file; return their prompts.

    `other` holds prompts of the other split, which must not appear in this one.
    """
    seen: set[str] = set()
    with target.open("w", encoding="utf-8") as output:
        for number, line in _lines(source):
            row, reason = _check(line, source.parent)
            prompt = (
                "" if row is None else json.dumps([row["messages"], row.get("images")], ensure_ascii=False)
            )
            if row is not None and prompt in seen:
                reason = "duplicate prompt"
            elif row is not None and prompt in other:
                reason = "prompt is also in the held-out data"
            if row is None or reason:
                rejected[reason] += 1
                entry = {"file": str(source), "row": number, "reason": reason}
                refused.write(json.dumps(entry, ensure_ascii=False) + "\n")
                continue
            seen.add(prompt)
            output.write(json.dumps(row, ensure_ascii=False) + "\n")
    return seen


def _lines(source: Path) -> Iterator[tuple[int, str]]:
    with source.open(encoding="utf-8", errors="replace") as content:
        for number, line in enumerate(content, start=1):
            if line.strip():
                yield number, line


def _check(line: str, directory: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the row with media as absolute paths, or the reason why it is invalid."""
    try:
        row = json.loads(line)
    except ValueError:
        return None, "not valid JSON"
    reason = _check_messages(row.get("messages") if isinstance(row, dict) else None)
    if reason:
        return None, reason
    for column in MEDIA_COLUMNS:
        for index, item in enumerate(row.get(column) or []):
            if isinstance(item, str) and "://" not in item:
                path = (directory / item).absolute()
                if not path.is_file():
                    return None, f"{column}: file not found"
                row[column][index] = str(path)
    return row, ""


def _check_messages(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        return "no messages"
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return "a message without role"
        if not isinstance(message.get("content"), str | list) or not message["content"]:
            return "a message without content"
    if messages[-1]["role"] == "assistant":
        # ms-swift would cut the answer off without a word; as a prompt it leaks the solution
        return "the last message is the assistant's"
    return ""


def _cached_rows(cached: Path) -> int:
    """Count the rows of a cached data set.

    Raises:
        StageFailed: `swift export` ended with code 0 and wrote nothing, as it does for an unknown action.
    """
    info = cached / "dataset_info.json"
    if not info.is_file():
        raise StageFailed(f"swift export wrote no data set under {cached}")
    splits = json.loads(info.read_text()).get("splits") or {}
    if splits:
        return sum(split["num_examples"] for split in splits.values())
    return -1
