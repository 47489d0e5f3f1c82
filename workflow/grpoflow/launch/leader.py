"""The Snakemake above a stage, which a stage must not outlive.

A driver stage waits for hours. When Snakemake is killed its children live on, and a second Snakemake would
find two drivers. Snakemake says in the environment which process it is, and a stage looks whether that
process is still there. Looking at the parents instead fails both ways: a stage that is just starting when
Snakemake is killed never sees it alive, and the shell above `nohup snakemake` may end while Snakemake lives.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .processes import process_start

VARIABLE = "GRPOFLOW_SNAKEMAKE"


@dataclass(frozen=True)
class Leader:
    """The Snakemake that started this stage."""

    pid: int = 0
    started: str = ""

    @classmethod
    def of_this_stage(cls) -> Leader:
        """As the environment says; a stage that was started without a Snakemake has no leader."""
        pid, _, started = os.environ.get(VARIABLE, "").partition(" ")
        return cls(int(pid), started) if pid else cls()

    @classmethod
    def this_process(cls) -> Leader:
        return cls(os.getpid(), process_start(os.getpid()))

    def announce(self) -> None:
        """To the stages that this process will start."""
        os.environ[VARIABLE] = str(self)

    def is_alive(self) -> bool:
        return not self.pid or process_start(self.pid) == self.started

    def __str__(self) -> str:
        return f"{self.pid} {self.started}" if self.pid else ""
