"""Work that needs torch or ms-swift: done by the Python of the training environment."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from grpoflow.commands import cpu
from grpoflow.commands.base import Command, program
from grpoflow.commands.convert import to_mcore
from grpoflow.commands.distributed import Ranks
from grpoflow.files import write_json
from grpoflow.launch.ports import free_port

from .base import Stage

PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def inside(stage: Stage, module: str, *arguments: str | Path) -> Command:
    """Build a call of `grpoflow.training_env.MODULE` in the training environment."""
    argv = (*program(stage.config, "python"), "-m", f"grpoflow.training_env.{module}")
    env = {"PYTHONPATH": os.fspath(PACKAGE_ROOT)} | cpu.environment(stage.config, "hf")
    return Command((*argv, *(os.fspath(argument) for argument in arguments)), env)


def compare_tensors(stage: Stage, ours: Path, theirs: Path, absent: Collection[str] = ()) -> None:
    """Check that two Hugging Face directories hold equal tensors; `absent` may be in one of them only.

    Raises:
        ProgramFailed: they differ; the log names each tensor.
    """
    # beside the logs, which every node sees: the comparison may run on another one than this
    names = stage.logs / "absent.json"
    write_json(names, sorted(absent))
    stage.run("compare_tensors", inside(stage, "compare_tensors", ours, theirs, names))


def compare_logits(
    stage: Stage, ours: Path, theirs: Path, prompts: Path, report: Path, *adapter: Path
) -> None:
    """Check that two Hugging Face directories load in transformers and give the same logits, `ours` with an
    adapter if one is given.

    Raises:
        ProgramFailed: they do not; the log has the numbers.
    """
    stage.run("compare_logits", inside(stage, "compare_logits", ours, theirs, prompts, report, *adapter))


def convert_precision(stage: Stage, source: Path, work: Path) -> None:
    """Convert once more and compare the logits of both models; the numbers are in convert_precision.log.

    Raises:
        ProgramFailed: a model does not load.
    """
    made = to_mcore(stage.config, source, work / "unused", Ranks(master_port=free_port()))
    program_length = len(program(stage.config, "megatron", "export"))
    ours = inside(stage, "convert_precision", work / "image.png", *made.argv[program_length:])
    stage.run("convert_precision", Command(ours.argv, {**made.env, **ours.env}))
