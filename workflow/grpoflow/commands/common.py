"""Arguments that several programs take, in one place so that they cannot disagree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpoflow.config import Config

# ms-swift model type and template by the `model_type` of config.json. One architecture name stands for
# several of both in ms-swift 4.6.0 (qwen3_5, ovis_ocr2, qwen3_5_emb, ...), which then refuses to guess.
# A text-only checkpoint has no model type of its own there; template qwen3 writes the same prompts.
KNOWN_MODELS: dict[str, tuple[str | None, str | None]] = {
    "qwen3_5": ("qwen3_5", "qwen3_5"),
    "qwen3_5_moe": ("qwen3_5_moe", "qwen3_5"),
    "qwen3_5_text": (None, "qwen3"),
    "qwen3_5_moe_text": (None, "qwen3"),
}


def known_model(directory: Path) -> tuple[str | None, str | None]:
    """The ms-swift model type and template of a Qwen3.5 directory; None leaves the choice to ms-swift."""
    path = directory / "config.json"
    if not path.is_file():
        return None, None
    found = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    return KNOWN_MODELS.get(found, (None, None))


def model_arguments(config: Config, model: str) -> dict[str, Any]:
    """What every program must be told alike: the model, its template and whether it thinks."""
    model_type, template = known_model(Path(model))
    return {
        "model": model,
        "model_type": config.model.model_type or model_type,
        "template": config.model.template or template,
        "system": config.model.system,
        "enable_thinking": config.model.enable_thinking,
        "torch_dtype": config.model.torch_dtype,
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


def engine_arguments(config: Config) -> dict[str, Any]:
    """The vLLM engine, alike in the rollout server, in the trainer (colocate) and in evaluation."""
    section = config.rollout
    return {
        "vllm_tensor_parallel_size": section.tensor_parallel_size,
        "vllm_gpu_memory_utilization": section.gpu_memory_utilization,
        # a prompt and its completion must fit: otherwise completions get shorter without a word
        "vllm_max_model_len": config.data.max_length + config.trainer.max_completion_length,
        "vllm_enforce_eager": section.enforce_eager,
        # without a limit vLLM runs its largest image through the vision tower at every start
        "vllm_limit_mm_per_prompt": {"image": section.limit_images, "video": 0},
        "vllm_engine_kwargs": section.engine_args or None,
    }
