"""Stage cache_dataset: frozen, validated prompts for GRPO and the tokenised conversations of SFT."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from grpoflow.commands.cache import cache_sft_dataset
from grpoflow.files import sha256
from grpoflow.rows import check_row, lines

from .base import Stage, StageFailed, attempt_directory, finish


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
        for number, line in lines(source):
            row, reason = check_row(line, source.parent)
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
