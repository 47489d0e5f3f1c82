"""`swift eval`: public benchmarks through EvalScope."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpoflow.config import Config
from grpoflow.config.evaluate import BenchmarksConfig

from . import cpu
from .base import Command, flags, program
from .common import engine_arguments, model_arguments


def benchmark(
    config: Config, benchmarks: BenchmarksConfig, model: Path, output: Path, port: int, copies: int = 1
) -> Command:
    """Serve `model` and let EvalScope ask it; its files go to `output`/native.

    Args:
        copies: Copies of the model that share the questions (engine: vllm).
    """
    given = dict(benchmarks.args)
    arguments: dict[str, Any] = {
        **model_arguments(config, str(model)),
        "infer_backend": config.evaluate.engine,
        "host": "127.0.0.1",
        "port": port,
        "eval_dataset": benchmarks.datasets,
        "eval_limit": benchmarks.limit,
        "eval_output_dir": output,
        "eval_generation_config": {
            "temperature": 0.0,
            "max_tokens": config.trainer.max_completion_length,
            **mapping_of(given.pop("eval_generation_config", None)),
        },
        # a time stamp in the path would hide the reports from the stage
        "extra_eval_args": {**mapping_of(given.pop("extra_eval_args", None)), "no_timestamp": True},
    }
    if config.evaluate.engine == "transformers":
        arguments["max_batch_size"] = config.evaluate.batch_size
    else:
        arguments |= engine_arguments(config)
        # ranks of torchrun, as `swift infer` has them, are for no server (swift/cli/main.py:107)
        arguments["vllm_data_parallel_size"] = copies if copies > 1 else None
    return Command(program(config, "swift", "eval") + flags(arguments | given), cpu.environment(config, "hf"))


def mapping_of(given: Any) -> dict[str, Any]:
    """A mapping, or the text of one; preflight refuses anything else."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
