"""When a line was written, and which cause was the first.

Most lines of a training log carry no time. The rule, stated once:

* a line with a stamp has that time;
* a line without one was written between the nearest stamp before it and the nearest one after it in the same
  file; the end of the file counts as a stamp with the time of its last change. Its time is the stamp that is
  nearer in bytes (an error is usually followed at once by torchrun's stamped summary or by the end of the
  file, while the last stamp before it may be hours old);
* within a file, position decides.

Copies that do not keep the time of the last change lose the order between files without stamps.

The first cause is the earliest one, with one exception: a process that ended without saying why (level 1), or
the wait for somebody else (level 2: an NCCL watchdog, a refused connection), is only named if it was surely
earlier than every cause of a lower level. When it is not named it is reported as a consequence. Failures that
leave no text (level 3) come last: they did not end the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .findings import Finding

# Clocks of nodes and the flushing of logs differ by this much at most.
SLACK_SECONDS = 60.0
BEGINNING = float("-inf")


@dataclass
class Sighting:
    """A finding with what is known of its time.

    earliest, latest: bounds of its time in seconds since the epoch. when: the estimate. position: (index of
    the file, offset in it), for lines of the same time.
    """

    finding: Finding
    level: int
    position: tuple[int, int]
    earliest: float
    latest: float
    when: float

    @property
    def key(self) -> tuple[float, tuple[int, int]]:
        return self.when, self.position


def first(causes: Iterable[Sighting]) -> Sighting | None:
    """Choose the first cause by the rule of this module; None if there is no cause."""
    best: Sighting | None = None
    by_level: dict[int, Sighting] = {}
    for cause in sorted(causes, key=lambda sighting: sighting.key):
        by_level.setdefault(cause.level, cause)
    for level in sorted(by_level):
        candidate = by_level[level]
        if best is None or best.earliest > candidate.latest + SLACK_SECONDS:
            best = candidate
    return best
