"""The message of a failed attempt: what was seen, the first cause that the logs show, the end of a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpoflow.doctor import first_cause

from .process import log_excerpt

ACCIDENTS = {"F100-port-in-use"}
"""Causes that are gone at the next attempt, which takes other ports."""


@dataclass(frozen=True)
class Explanation:
    text: str
    accident: bool


def explain(logs: Sequence[Path], what: str = "", log: Path | None = None) -> Explanation:
    """Put the parts together; without `what` and `log` only the cause, an empty text if there is none."""
    parts = [what] if what else []
    found = first_cause(logs)
    if found is not None:
        place = f"{found.file}:{found.line}" if found.line else found.file
        parts += [f"cause ({found.id}): {found.why}", f"  fix: {found.fix}"]
        parts.append(f"  seen in {place}: {found.text}")
    if log is not None:
        parts.append(log_excerpt(log))
    return Explanation("\n".join(parts), found is not None and found.id in ACCIDENTS)
