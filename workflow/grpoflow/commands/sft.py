"""`swift sft` and `megatron sft`: the warm start."""

from __future__ import annotations

from pathlib import Path

from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.plan.inputs import sft_swift_ranks

from . import cpu
from .base import Command, flags, program
from .common import model_arguments
from .distributed import Ranks, torchrun_environment
from .tuning import megatron_arguments, swift_arguments


def sft(config: Config, cached: Path, output: Path, ranks: Ranks, parallel: Parallel) -> Command:
    """Train on the cached data set; the last checkpoint in `output` is a Hugging Face directory.

    Raises:
        ValueError: the configuration has no `sft` section.
    """
    tuner = config.sft
    if tuner is None:
        raise ValueError("this configuration has no sft section")
    arguments = {
        **model_arguments(config, config.model.path),
        "cached_dataset": cached,
        "split_dataset_ratio": 0,
        "max_length": tuner.max_length,
        "output_dir": output,
        "add_version": False,  # a time stamp in the path would hide the result from the next stage
        "report_to": ["tensorboard"],
        "logging_steps": 5,
    }
    if tuner.backend == "megatron":
        arguments |= megatron_arguments(config, tuner, parallel)
        # only the Hugging Face weights of the last step are used, and a killed stage starts over
        arguments |= {"finetune": True, "no_save_optim": True, "no_save_rng": True, "save_steps": 10**9}
        arguments |= cpu.arguments(config, cpu.MEGATRON) | tuner.args
        environment = cpu.environment(config, "megatron") | torchrun_environment(ranks)
        return Command(program(config, "megatron", "sft") + flags(arguments), environment)
    arguments |= swift_arguments(tuner, sft_swift_ranks(tuner, ranks.world_size))
    arguments |= {"save_only_model": True, "save_steps": 10**9}
    arguments |= cpu.arguments(config, cpu.SWIFT) | tuner.args
    environment = cpu.environment(config, "hf") | torchrun_environment(ranks)
    return Command(program(config, "swift", "sft") + flags(arguments), environment)
