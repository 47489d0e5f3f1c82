"""Which task of which job a process is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from . import slurm
from .run import AttemptKey


@dataclass(frozen=True)
class Task:
    """One task of the job: one node in one attempt."""

    key: AttemptKey
    node: int
    address: str
    launcher: str

    @property
    def is_slurm(self) -> bool:
        return self.launcher == "slurm"

    def next(self) -> Task:
        """The same node in another try of the same job."""
        return replace(self, key=replace(self.key, again=self.key.again + 1))


def this_task(environment: Mapping[str, str]) -> Task:
    """Read the task from what Slurm or submitit's local executor set."""
    if "SUBMITIT_LOCAL_JOB_ID" in environment:
        return Task(AttemptKey(environment["SUBMITIT_LOCAL_JOB_ID"]), 0, "127.0.0.1", "local")
    key = AttemptKey(environment["SLURM_JOB_ID"], int(environment.get("SLURM_RESTART_COUNT", "0")))
    address = slurm.node_address(environment["SLURMD_NODENAME"])
    return Task(key, int(environment["SLURM_NODEID"]), address, "slurm")
