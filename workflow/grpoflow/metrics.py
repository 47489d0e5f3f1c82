"""Reading the `logging.jsonl` of ms-swift (one JSON object a line, appended by every attempt)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from grpoflow.files import Follower

STEP_KEYS = ("iteration", "global_step/max_steps")
STEP = re.compile(r"(\d+)/(\d+)")


def read_steps(log: Path) -> list[dict[str, Any]]:
    """Return one record per training step, in order, with its `step` and `max_steps`.

    A resumed run repeats the steps after its checkpoint: the last record of a step counts. Evaluation
    records and the closing summary are left out, and so is a line that is being written.
    """
    records = {record["step"]: record for record in LogFollower(log, from_start=True).read()}
    return [records[step] for step in sorted(records)]


class LogFollower:
    """Reads what is appended to a `logging.jsonl`, each line once."""

    def __init__(self, log: Path, *, from_start: bool = False):
        self._lines = Follower(log, from_start=from_start)

    def read(self) -> list[dict[str, Any]]:
        """The records of the training steps that were appended since the last call, as `read_steps`."""
        return [record for line in self._lines.read() if (record := _step_record(line)) is not None]


def _step_record(line: bytes) -> dict[str, Any] | None:
    record = _last_object(line.decode("utf-8", "replace"))
    if not isinstance(record, dict) or "loss" not in record:
        return None
    position = next((str(record[key]) for key in STEP_KEYS if key in record), "")
    match = STEP.fullmatch(position)
    return {**record, "step": int(match[1]), "max_steps": int(match[2])} if match else None


def _last_object(line: str) -> Any:
    """The JSON object that a line ends with: before it may stand what a killed trainer had begun to write."""
    start = line.find("{")
    while start >= 0:
        try:
            return json.loads(line[start:])
        except ValueError:
            start = line.find("{", start + 1)
    return None


def progress(log: Path) -> str:
    """Say in one line how far a training is; empty before the first step."""
    steps = read_steps(log)
    return describe(steps[-1]) if steps else ""


def describe(last: dict[str, Any]) -> str:
    """A record of `read_steps` in one line."""
    parts = [f"step {last['step']}/{last['max_steps']}"]
    parts += [f"{name} {last[name]:.4g}" for name in ("loss", "reward", "grad_norm") if name in last]
    return "  ".join(parts)
