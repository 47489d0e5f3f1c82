"""Ending together with Snakemake.

A driver stage waits for hours. When Snakemake is killed its children live on, and a second Snakemake would
find two drivers. A shell stands between Snakemake and the stage, so PR_SET_PDEATHSIG alone does not help: the
stage remembers its ancestors and looks whether they are still the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from .job import process_start

ANCESTORS = 3


class Ancestors:
    """The processes above this one, as they were when this object was made."""

    def __init__(self) -> None:
        self._started: dict[int, str] = {}
        pid = os.getppid()
        while pid > 1 and len(self._started) < ANCESTORS:
            self._started[pid] = process_start(pid)
            pid = _parent_of(pid)

    def are_alive(self) -> bool:
        return all(process_start(pid) == started for pid, started in self._started.items())


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
