"""`swift export --to_cached_dataset`: the tokenised data set of the SFT stage."""

from __future__ import annotations

from pathlib import Path

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
    arguments = {
        **model_arguments(config, config.model.path),
        "to_cached_dataset": True,
        "template_mode": "train",
        "dataset": dataset,
        "split_dataset_ratio": 0,
        "max_length": config.sft.max_length,
        "truncation_strategy": "delete",
        "dataset_num_proc": config.data.num_proc,
        "output_dir": output,
        "exist_ok": True,  # FileExistsError otherwise (swift/arguments/export_args.py:120)
    }
    return Command(program(config, "swift", "export") + flags(arguments), cpu.environment(config, "hf"))
