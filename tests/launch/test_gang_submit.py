"""The job of a stage over several nodes, with a Slurm that is made up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from grpoflow.commands.base import Command
from grpoflow.launch import gang as gang_module
from grpoflow.launch import slurm
from grpoflow.launch.gang import Gang
from scene import Scene

ENDED = slurm.JobFacts("CANCELLED", "", 0, None, None, None, is_preempted=False)


class Executor:
    """Answers like sbatch, and gets a Ctrl-C while it does."""

    def __init__(self, _: Path) -> None: ...

    def update_parameters(self, **_: object) -> None: ...

    def submit(self, *_: object) -> SimpleNamespace:
        os.kill(os.getpid(), signal.SIGINT)
        return SimpleNamespace(job_id="55")


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    told: list[str] = []
    monkeypatch.setattr(slurm, "jobs_with_comment", lambda _: [])
    monkeypatch.setattr(slurm, "cancel", told.append)
    monkeypatch.setattr(slurm, "job_facts", lambda *_: ENDED)
    monkeypatch.setattr(gang_module.submitit, "SlurmExecutor", Executor)
    yield told


def test_an_interrupt_while_sbatch_answers_cancels_the_job(tmp_path: Path, cancelled: list[str]) -> None:
    commands = [Command(("true",), {}), Command(("true",), {})]
    made = Gang("to_hf", "owner", tmp_path / "jobs/to_hf", Scene(tmp_path).config(), commands, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        made.run({}, lambda _: None)
    assert cancelled == ["55"]
