"""`swift infer`: completions for evaluation."""

from __future__ import annotations

from pathlib import Path

from grpoflow.config import Config

from . import cpu
from .base import Command, flags, program
from .common import engine_arguments, model_arguments, sampling_arguments
from .distributed import Ranks, torchrun_environment

ONE_RANK = Ranks()


def infer(
    config: Config, model: Path, prompts: Path, result: Path, *, greedy: bool, ranks: Ranks = ONE_RANK
) -> Command:
    """Complete every row of `prompts` into `result` (which must not exist: rows are appended to it).

    Several ranks share the rows and write them in order (swift/pipelines/infer/infer.py, _batch_infer).
    """
    sampling = {"temperature": 0.0} if greedy else sampling_arguments(config)
    arguments = {
        **model_arguments(config, str(model)),
        "val_dataset": prompts,
        "split_dataset_ratio": 0,
        "infer_backend": config.evaluate.engine,
        "max_length": config.data.max_length,
        "max_new_tokens": config.trainer.max_completion_length,
        "result_path": result,
        "seed": config.evaluate.seed,
        **sampling,
    }
    if config.evaluate.engine == "transformers":
        arguments["max_batch_size"] = config.evaluate.batch_size
    else:
        arguments |= engine_arguments(config)
    environment = cpu.environment(config, "hf")
    if ranks.world_size > 1:
        environment |= torchrun_environment(ranks)
    return Command(program(config, "swift", "infer") + flags(arguments), environment)
