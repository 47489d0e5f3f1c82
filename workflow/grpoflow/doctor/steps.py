"""At which step a training is, from its progress bar and its metrics in the log."""

from __future__ import annotations

import re

MARKS = (b"Train:", b"'iteration': ", b"'global_step/max_steps': ")
STEP = re.compile(
    rb"Train: *\d+%\|[^|\r\n]*\| *(\d+)/\d+ \[|'(?:iteration|global_step/max_steps)': '?(\d+)/\d+"
)
# One step may still end, and its metrics be written, after a rank has died.
WENT_ON = 2
TRIES = 8


def first(piece: bytes) -> int | None:
    """The first step that is named in a piece of a log."""
    match = STEP.search(piece)
    return int(match[1] or match[2]) if match else None


def last(piece: bytes) -> int | None:
    """The last step that is named in a piece of a log; found from its end."""
    steps = [step for mark in MARKS if (step := _last(piece, mark)) is not None]
    return max(steps, default=None)


def _last(piece: bytes, mark: bytes) -> int | None:
    at = len(piece)
    for _ in range(TRIES):  # a bar may be cut
        at = piece.rfind(mark, 0, at)
        if at < 0:
            return None
        if match := STEP.match(piece, at):
            return int(match[1] or match[2])
    return None
