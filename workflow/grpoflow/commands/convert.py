"""`megatron export`: Hugging Face <-> Megatron-core.

`swift export --to_mcore` does the same in one process, but it silently stores float32 weights as float16 (it
has no --bf16/--fp16 to say otherwise) and cannot be distributed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpoflow.config import Config
from grpoflow.config.tuner import Parallel

from . import cpu
from .base import Command, flags, program
from .common import model_arguments, precision_arguments
from .distributed import Ranks, torchrun_environment
from .tuning import layout_arguments


def to_mcore(
    config: Config, source: Path, output: Path, ranks: Ranks, parallel: Parallel | None = None
) -> Command:
    """Convert a Hugging Face directory to a torch_dist checkpoint."""
    arguments = {**model_arguments(config, str(source)), "to_mcore": True}
    return _export(config, arguments, output, ranks, parallel)


def to_hf(
    config: Config,
    source: Path,
    base: Path,
    output: Path,
    ranks: Ranks,
    parallel: Parallel | None = None,
    *,
    save_missing_weights: bool = True,
) -> Command:
    """Convert a Megatron-core checkpoint to a Hugging Face directory.

    `base` is the Hugging Face directory that the run started from: configuration and tokenizer come from it,
    and with `save_missing_weights` the tensors that the Megatron model does not hold (MTP, unless it is
    trained).
    """
    arguments = {
        **model_arguments(config, str(base)),
        "to_hf": True,
        "mcore_model": source,
        "save_missing_weights": save_missing_weights,
    }
    return _export(config, arguments, output, ranks, parallel)


def _export(
    config: Config, arguments: dict[str, Any], output: Path, ranks: Ranks, parallel: Parallel | None
) -> Command:
    if parallel is not None:
        arguments |= layout_arguments(parallel)
    arguments |= {
        **precision_arguments(config),
        "output_dir": output,
        "exist_ok": True,  # FileExistsError otherwise (swift/megatron/arguments/export_args.py:37)
        "check_model": False,
    }
    arguments |= cpu.arguments(config, cpu.MEGATRON)
    environment = cpu.environment(config, "megatron") | torchrun_environment(ranks)
    return Command(program(config, "megatron", "export") + flags(arguments), environment)


def merge_adapter(config: Config, base: Path, adapter: Path, output: Path) -> Command:
    """Merge a LoRA adapter of the swift backend into its base model."""
    arguments = {
        **model_arguments(config, str(base)),
        "adapters": adapter,
        "merge_lora": True,
        "output_dir": output,
        "exist_ok": True,
    }
    return Command(program(config, "swift", "export") + flags(arguments), cpu.environment(config, "hf"))
