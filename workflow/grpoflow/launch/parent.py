"""Ending together with Snakemake, in the way in which Snakemake ends.

A driver stage waits for hours. When Snakemake is killed its children live on, and a second Snakemake would
find two drivers. A shell stands between Snakemake and the stage, so PR_SET_PDEATHSIG alone does not help: the
stage remembers its ancestors and looks whether they are still the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType

from .guard import descendants
from .processes import parent_of, process_start

ANCESTORS = 3


class Ancestors:
    """The processes above this one, as they were when this object was made."""

    def __init__(self) -> None:
        self._started: dict[int, str] = {}
        pid = os.getppid()
        while pid > 1 and len(self._started) < ANCESTORS:
            self._started[pid] = process_start(pid)
            pid = parent_of(pid)

    def are_alive(self) -> bool:
        return all(process_start(pid) == started for pid, started in self._started.items())


def forward_interrupts() -> None:
    """Make this process, Snakemake, pass SIGINT on to the stages that it runs on this machine.

    A Ctrl-C reaches them anyhow, but `kill -INT` reaches Snakemake alone, which then waits for them without
    telling them. Stages with a session of their own end by themselves when theirs is over.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _forward)


def _forward(number: int, frame: FrameType | None) -> None:
    own = os.getsid(0)
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if os.getsid(pid) == own:
                os.kill(pid, number)
    signal.default_int_handler(number, frame)
