"""Arguments that several programs take, in one place so that they cannot disagree."""

from __future__ import annotations

from typing import Any

from grpoflow.config import Config


def model_arguments(config: Config, model: str) -> dict[str, Any]:
    """What every program must be told alike: the model, its template and whether it thinks."""
    return {
        "model": model,
        "model_type": config.model.model_type,
        "template": config.model.template,
        "system": config.model.system,
        "enable_thinking": config.model.enable_thinking,
        "torch_dtype": config.model.torch_dtype,
        "check_model": False,  # asks the hub: 22 s of retries on a node without network
    }


def precision_arguments(config: Config) -> dict[str, Any]:
    """Megatron turns float32 into float16 unless told otherwise (megatron_args.py, _init_mixed_precision)."""
    dtype = config.model.torch_dtype
    return {"bf16": dtype == "bfloat16", "fp16": dtype == "float16"}


def prompt_arguments(config: Config) -> dict[str, Any]:
    return {
        "max_length": config.data.max_length,
        "truncation_strategy": config.data.truncation_strategy,
        "dataset_num_proc": config.data.num_proc,
    }


def reward_arguments(config: Config) -> dict[str, Any]:
    return {
        "external_plugins": config.rewards.plugin,
        "reward_funcs": config.rewards.functions,
        "reward_weights": list(config.rewards.weight_of().values()),
    }


def sampling_arguments(config: Config) -> dict[str, Any]:
    return {
        "temperature": config.rollout.temperature,
        "top_p": config.rollout.top_p,
        "top_k": config.rollout.top_k,
    }
