"""Reading the `logging.jsonl` of ms-swift (one JSON object a line, appended by every attempt)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

STEP_KEYS = ("iteration", "global_step/max_steps")
STEP = re.compile(r"(\d+)/(\d+)")


def read_steps(log: Path) -> list[dict[str, Any]]:
    """Return one record per training step, in order, with its `step` and `max_steps`.

    A resumed run repeats the steps after its checkpoint: the last record of a step counts. Evaluation
    records and the closing summary are left out, and so is a line that is being written.
    """
    records: dict[int, dict[str, Any]] = {}
    if not log.is_file():
        return []
    with log.open(encoding="utf-8", errors="replace") as content:
        for line in content:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if not isinstance(record, dict) or "loss" not in record:
                continue
            position = next((str(record[key]) for key in STEP_KEYS if key in record), "")
            if match := STEP.fullmatch(position):
                step, maximum = int(match[1]), int(match[2])
                records[step] = {**record, "step": step, "max_steps": maximum}
    return [records[step] for step in sorted(records)]


def progress(log: Path) -> str:
    """Say in one line how far a training is; empty before the first step."""
    steps = read_steps(log)
    if not steps:
        return ""
    last = steps[-1]
    parts = [f"step {last['step']}/{last['max_steps']}"]
    parts += [f"{name} {last[name]:.4g}" for name in ("loss", "reward", "grad_norm") if name in last]
    return "  ".join(parts)
