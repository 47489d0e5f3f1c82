"""`swift rollout`: the vLLM server that generates during GRPO."""

from __future__ import annotations

from pathlib import Path

from grpoflow.config import Config

from . import cpu
from .base import Command, flags, program
from .common import engine_arguments, model_arguments


def rollout(config: Config, model: Path, port: int, data_parallel_size: int) -> Command:
    """Serve `model` on `port`. Not started by torchrun: NPROC_PER_NODE must not be in its environment."""
    section = config.rollout
    arguments = {
        **model_arguments(config, str(model)),
        "host": "0.0.0.0",
        "port": port,
        **engine_arguments(config),
        "vllm_data_parallel_size": data_parallel_size,
        "vllm_max_num_seqs": section.max_num_seqs,
    }
    if config.trainer.tuner == "lora":
        arguments |= {"vllm_enable_lora": True, "vllm_max_lora_rank": config.trainer.lora_rank}
    arguments |= cpu.arguments(config, cpu.ROLLOUT) | section.args
    return Command(program(config, "swift", "rollout") + flags(arguments), cpu.environment(config, "rollout"))
