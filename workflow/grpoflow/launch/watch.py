"""Watching a training from its log: how far it is, and whether it stands still."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from grpoflow.metrics import LogFollower

PATIENCE = 10.0
"""An interval between two log lines may be this many times the longest one so far."""
SUSPICION = 3.0
"""Beyond this many times the longest interval the logs are searched for a cause."""


@dataclass
class Progress:
    """The steps of one attempt as they appear in logging.jsonl, and how long they take.

    An attempt stands still when no new step was logged for `stall_timeout` seconds, or for PATIENCE times the
    longest interval so far if that is more. Until its first step it may take `startup` seconds in addition,
    for loading and compiling.
    """

    log: Path
    stall_timeout: float
    startup: float
    started: float
    step: int = 0
    max_steps: int = 0
    first_step: float | None = None
    """When the first step of this attempt was seen (monotonic)."""
    longest: float = 0.0
    _last: float = 0.0
    _follower: LogFollower = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.started
        self._follower = LogFollower(self.log)

    def observe(self, now: float) -> bool:
        """Read what is new in the log; return whether there is a new step."""
        steps = self._follower.read()
        if not steps:
            return False
        if self.first_step is None:
            self.first_step = now
        else:
            self.longest = max(self.longest, now - self._last)
        self.step, self.max_steps = steps[-1]["step"], steps[-1]["max_steps"]
        self._last = now
        return True

    @property
    def bound(self) -> float:
        """Seconds without a new step after which the attempt counts as hung."""
        if self.first_step is None:
            return self.startup + self.stall_timeout
        return max(self.stall_timeout, PATIENCE * self.longest)

    def silence(self, now: float) -> float:
        return now - self._last

    def is_stalled(self, now: float) -> bool:
        return self.silence(now) > self.bound

    def is_suspicious(self, now: float) -> bool:
        """Whether it is time to look into the logs for a cause."""
        return self.first_step is not None and self.silence(now) > max(60.0, SUSPICION * self.longest)
