"""Whether the next checkpoint fits on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from grpoflow.checkpoints import newest_checkpoint
from grpoflow.preflight.estimate import disk
from grpoflow.preflight.subject import Subject

from .run import Launch, RunDirectory


def next_save(step: int, save_steps: int, max_steps: int) -> int:
    """The step of the first save after `step`: saves are at multiples of save_steps and at the last step."""
    return min((step // save_steps + 1) * save_steps, max_steps)


def checkpoint_size(run: RunDirectory, launch: Launch) -> int:
    """Bytes of the next checkpoint: as the last one, before the first one as planned, 0 if unknown."""
    newest = newest_checkpoint(run.output)
    if newest is not None:
        return size_of(newest.path)
    planned = disk(Subject(launch.experiment, launch.config))
    return planned.per_checkpoint if planned else 0


def missing_space(output: Path, needed: int) -> int:
    """Bytes that are missing on the filesystem of `output` for a checkpoint of `needed` bytes, 0 if none.

    Checkpoints that were moved aside are removed first, when their space is needed.
    """
    if shutil.disk_usage(output).free < needed:
        for aside in output.glob("incomplete-checkpoint-*"):
            shutil.rmtree(aside, ignore_errors=True)
    return max(0, needed - shutil.disk_usage(output).free)


def size_of(directory: Path) -> int:
    """Bytes of all files of a directory."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # it went away meanwhile
    return total
