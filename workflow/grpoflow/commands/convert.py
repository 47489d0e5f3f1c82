"""`swift export` / `megatron export`: Hugging Face <-> Megatron-core."""

from __future__ import annotations

from pathlib import Path

from grpoflow.config import Config

from . import cpu
from .base import Command, flags, program
from .common import model_arguments


def to_mcore(config: Config, source: Path, output: Path) -> Command:
    """Convert a Hugging Face directory in one process."""
    arguments = {
        **model_arguments(config, str(source)),
        "to_mcore": True,
        "output_dir": output,
        "exist_ok": True,
    }
    return Command(program(config, "swift", "export") + flags(arguments), cpu.environment(config, "megatron"))


def to_hf(config: Config, source: Path, base: Path, output: Path) -> Command:
    """Convert a Megatron-core checkpoint in one process.

    `base` is the Hugging Face directory that the run started from: configuration, tokenizer and the tensors
    that the Megatron model does not hold (MTP) come from it.
    """
    arguments = {
        **model_arguments(config, str(base)),
        "to_hf": True,
        "mcore_model": source,
        "output_dir": output,
        "exist_ok": True,
    }
    return Command(program(config, "swift", "export") + flags(arguments), cpu.environment(config, "megatron"))


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
