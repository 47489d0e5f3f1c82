"""The directory in which a stage makes its result, and which becomes the result by one rename."""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpoflow.launch.job import SlurmJob
from grpoflow.launch.processes import process_start

from .base import Stage, StageFailed


@contextmanager
def attempt_directory(stage: Stage) -> Iterator[Path]:
    """Yield a directory that becomes the stage's result, manifest included, by one rename.

    The block must write `stage.output.name` in it, last. Each attempt has a directory of its own: a killed
    driver leaves its Slurm job running, so a stage can by accident run twice at once. The first rename wins,
    the other attempt is discarded. Until the rename nothing is to be seen under the final name, at whatever
    instant the stage is killed. What attempts that were killed have left is removed first.

    Raises:
        StageFailed: the block left no manifest.
    """
    final = stage.output.parent
    _sweep(final)
    work = final.with_name(f".{final.name}.{_owner()}-{uuid.uuid4().hex[:8]}")
    work.mkdir(parents=True)
    try:
        yield work
        if not (work / stage.output.name).is_file():
            raise StageFailed(f"the stage ended without writing {stage.output.name}")
        _take_place(work, stage.output)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _take_place(work: Path, output: Path) -> None:
    final = output.parent
    while True:
        try:
            work.rename(final)  # replaces an empty directory, such as the one that Snakemake makes
            return
        except OSError:
            if output.is_file():
                return  # another attempt was first
        # what lies there has no manifest: left by an attempt whose manifest was removed to run it again
        old = final.with_name(f".{final.name}.{_owner()}-{uuid.uuid4().hex[:8]}")
        final.rename(old)
        shutil.rmtree(old)


def _owner() -> str:
    """Who makes a directory: the job of Slurm, or the process and its machine."""
    return os.environ.get("SLURM_JOB_ID") or f"{os.getpid()}@{socket.gethostname()}"


def _sweep(final: Path) -> None:
    """Remove the directories of attempts that have ended; a model that is half converted fills a disk."""
    for path in final.parent.glob(f".{final.name}.*-*"):
        owner = path.name.removeprefix(f".{final.name}.").rpartition("-")[0]
        if _has_ended(owner):
            shutil.rmtree(path, ignore_errors=True)


def _has_ended(owner: str) -> bool:
    """Whether nobody works in a directory of this owner any more; in doubt somebody does."""
    number, at, host = owner.partition("@")
    if not number.isdecimal():
        return False
    if at:
        return host == socket.gethostname() and not process_start(int(number))
    # a requeued job has its number again, and no directory yet
    return owner == _owner() or SlurmJob(number).state() == "gone"
