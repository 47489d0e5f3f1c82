"""`megatron rlhf` and `swift rlhf`: GRPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.plan.inputs import vllm_spec

from . import cpu
from .base import Command, flags, program
from .common import (
    engine_arguments,
    model_arguments,
    prompt_arguments,
    reward_arguments,
    sampling_arguments,
)
from .distributed import Ranks, torchrun_environment
from .tuning import accumulation_steps, megatron_arguments, swift_arguments

TRAINING_ENV = Path(__file__).resolve().parents[1] / "training_env"


@dataclass(frozen=True)
class Server:
    """One rollout server as the trainer reaches it."""

    host: str
    port: int
    group_port: int
    """Port of the weight sync (the TCP store that vLLM opens on the server's host)."""


@dataclass(frozen=True)
class TrainPaths:
    """Files that a GRPO run reads and writes."""

    start: Path
    """Hugging Face directory that training starts from; also the reference of the KL term."""
    mcore: Path | None
    """The same weights converted, or None to load them through the bridge."""
    dataset: Path
    """The frozen prompts: JSON Lines, or with `data.grpo_cached` a directory of `swift export`."""
    output: Path
    resume_from: Path | None = None
    """Complete checkpoint of this run, or None for a new start."""


def train(
    config: Config, paths: TrainPaths, ranks: Ranks, parallel: Parallel, servers: Sequence[Server]
) -> Command:
    """Build the trainer of one node."""
    if config.trainer.backend == "megatron":
        return _megatron(config, paths, ranks, parallel, servers)
    return _swift(config, paths, ranks, servers)


def _common(config: Config, paths: TrainPaths, servers: Sequence[Server]) -> dict[str, Any]:
    trainer = config.trainer
    arguments: dict[str, Any] = {
        "rlhf_type": "grpo",
        **model_arguments(config, str(paths.start)),
        **prompt_arguments(config),
        **reward_arguments(config),
        **sampling_arguments(config),
        "cached_dataset" if config.data.grpo_cached else "dataset": paths.dataset,
        "split_dataset_ratio": 0,
        "load_from_cache_file": True,
        "use_vllm": True,
        "vllm_mode": config.rollout.mode,
        "num_generations": trainer.num_generations,
        "max_completion_length": trainer.max_completion_length,
        "loss_type": trainer.loss_type,
        "beta": trainer.beta,
        "epsilon": trainer.epsilon,
        "epsilon_high": trainer.epsilon_high,
        "overlong_filter": trainer.overlong_filter,
        "dynamic_sample": trainer.dynamic_sample,
        "output_dir": paths.output,
        "add_version": False,  # a resumed run must find its checkpoints under the same path
        "save_steps": trainer.save_steps,
        "save_total_limit": trainer.save_total_limit,
        "logging_steps": trainer.logging_steps,
        "log_completions": trainer.log_completions,
        # what the rollout says about its tokens against what the trainer computes: read by the quality gate
        "log_rollout_offpolicy_metrics": True,
        "report_to": config.tracking.report_to,
    }
    if config.rollout.mode == "server":
        arguments |= {
            "vllm_server_host": [server.host for server in servers],
            "vllm_server_port": [server.port for server in servers],
            "vllm_server_group_port": [server.group_port for server in servers],
            "vllm_server_timeout": config.rollout.startup_timeout,
        }
    else:
        arguments |= {
            **engine_arguments(config),
            "vllm_max_num_seqs": vllm_spec(config).max_num_seqs,
            "sleep_level": 1,
            "offload_model": True,
            "offload_optimizer": True,
        }
    return arguments


def _megatron(
    config: Config, paths: TrainPaths, ranks: Ranks, parallel: Parallel, servers: Sequence[Server]
) -> Command:
    trainer = config.trainer
    arguments = {
        **_common(config, paths, servers),
        **megatron_arguments(config, trainer, parallel),
        "steps_per_generation": trainer.steps_per_generation,
        "no_save_optim": not trainer.save_optimizer,
        "no_save_rng": not trainer.save_optimizer,
        "wandb_project": config.tracking.project,
        "swanlab_project": config.tracking.project,
    }
    if paths.resume_from is not None:
        # `model` stays the start: it is the reference of the KL term
        adapter = trainer.tuner == "lora"
        arguments |= {
            "mcore_adapter" if adapter else "mcore_model": paths.resume_from,
            "finetune": False,
            "no_load_optim": False,
            "no_load_rng": False,
        }
        if adapter:
            arguments["mcore_model"] = paths.mcore
    else:
        arguments |= {"mcore_model": paths.mcore, "finetune": True}
    arguments |= cpu.arguments(config, cpu.MEGATRON) | trainer.args
    environment = cpu.environment(config, "megatron") | torchrun_environment(ranks)
    return Command(program(config, "megatron", "rlhf") + flags(_with_plugins(config, arguments)), environment)


def _swift(config: Config, paths: TrainPaths, ranks: Ranks, servers: Sequence[Server]) -> Command:
    trainer = config.trainer
    arguments = {
        **_common(config, paths, servers),
        **swift_arguments(trainer, ranks.world_size),
        # trl counts micro batches here, not optimizer steps
        "steps_per_generation": trainer.steps_per_generation * accumulation_steps(trainer, ranks.world_size),
        "save_only_model": not trainer.save_optimizer,
        "resume_from_checkpoint": paths.resume_from,
    }
    arguments |= cpu.arguments(config, cpu.SWIFT) | trainer.args
    environment = cpu.environment(config, "hf") | torchrun_environment(ranks)
    return Command(program(config, "swift", "rlhf") + flags(_with_plugins(config, arguments)), environment)


def _with_plugins(config: Config, arguments: dict[str, Any]) -> dict[str, Any]:
    """Add our plugins and callback to those of the configuration, which may come from `trainer.args`."""
    plugins = ["walltime.py"] + (["late_client.py"] if config.rollout.mode == "server" else [])
    ours: dict[str, list[Any]] = {
        "external_plugins": [TRAINING_ENV / name for name in plugins],
        "callbacks": ["grpoflow_walltime"],
    }
    return arguments | {name: _listed(arguments.get(name)) + added for name, added in ours.items()}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
