"""Work that needs torch or ms-swift: done by the Python of the training environment."""

from __future__ import annotations

import os
from pathlib import Path

from grpoflow.commands import cpu
from grpoflow.commands.base import Command, program

from .base import Stage

PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def inside(stage: Stage, module: str, *arguments: str | Path) -> Command:
    """Build a call of `grpoflow.training_env.MODULE` in the training environment."""
    argv = (*program(stage.config, "python"), "-m", f"grpoflow.training_env.{module}")
    env = {"PYTHONPATH": os.fspath(PACKAGE_ROOT)} | cpu.environment(stage.config, "hf")
    return Command((*argv, *(os.fspath(argument) for argument in arguments)), env)


def compare_tensors(stage: Stage, ours: Path, theirs: Path) -> None:
    """Check that two Hugging Face directories hold equal tensors.

    Raises:
        ProgramFailed: they differ; the log names each tensor.
    """
    stage.run("compare_tensors", inside(stage, "compare_tensors", ours, theirs))


def compare_logits(stage: Stage, ours: Path, theirs: Path, prompts: Path, report: Path) -> None:
    """Check that two Hugging Face directories load in transformers and give the same logits.

    Raises:
        ProgramFailed: they do not; the log has the numbers.
    """
    stage.run("compare_logits", inside(stage, "compare_logits", ours, theirs, prompts, report))
