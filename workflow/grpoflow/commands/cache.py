"""`swift export --to_cached_dataset`: data sets in the form that several trainings map into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpoflow.config import Config

from . import cpu
from .base import Command, flags, program
from .common import model_arguments


def cache_sft_dataset(config: Config, dataset: Path, output: Path) -> Command:
    """Tokenise the conversations in `dataset` into `output`/train.

    Raises:
        ValueError: the configuration has no `sft` section.
    """
    if config.sft is None:
        raise ValueError("only the sft stage reads a cached data set")
    return _export(config, dataset, output, {"max_length": config.sft.max_length})


def cache_grpo_dataset(config: Config, dataset: Path, output: Path) -> Command:
    """Put the prompts in `dataset` into `output`/train, with the columns of the reward functions.

    Only `megatron rlhf` reads it; `swift rlhf` refuses (swift/arguments/rlhf_args.py:343). `template_mode
    rlhf` is for preference pairs and ends in a TypeError.
    """
    return _export(
        config, dataset, output, {"max_length": config.data.max_length, "remove_unused_columns": False}
    )


def _export(config: Config, dataset: Path, output: Path, arguments: dict[str, Any]) -> Command:
    arguments = {
        **model_arguments(config, config.model.path),
        "to_cached_dataset": True,
        "template_mode": "train",
        "dataset": dataset,
        "split_dataset_ratio": 0,
        "truncation_strategy": "delete",
        "dataset_num_proc": config.data.num_proc,
        "output_dir": output,
        "exist_ok": True,  # FileExistsError otherwise (swift/arguments/export_args.py:120)
        **arguments,
    }
    return Command(program(config, "swift", "export") + flags(arguments), cpu.environment(config, "hf"))
