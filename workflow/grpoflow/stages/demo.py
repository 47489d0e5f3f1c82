"""Rules demo_model and demo_data: the tiny model and the arithmetic data of the embedded default.

They make files under `resources/demo`, which a configuration names like any other model or data set.
"""

from __future__ import annotations

from grpoflow.commands import cpu
from grpoflow.commands.base import Command, program
from grpoflow.demo.data import write

from .base import Stage
from .inside import PACKAGE_ROOT


def demo_model(stage: Stage) -> None:
    """Build a tiny randomly initialised Qwen3.5 of the kind that the directory's name says."""
    directory = stage.output.parent
    argv = (
        *program(stage.config, "python"),
        "-m",
        "grpoflow.demo.model",
        str(directory),
        "--kind",
        directory.name,
    )
    env = {"PYTHONPATH": str(PACKAGE_ROOT)} | cpu.environment(stage.config, "hf")
    stage.run("model", Command(argv, env))


def demo_data(stage: Stage) -> None:
    """Write the sums: conversations for SFT, prompts for GRPO, held-out prompts."""
    write(stage.output.parent)
