"""Arguments of SFT and GRPO that differ between Megatron and the swift backend."""

from __future__ import annotations

from typing import Any

from grpoflow.config import Config
from grpoflow.config.tuner import Parallel, TunerConfig
from grpoflow.plan.inputs import megatron_core_of

from .common import precision_arguments

MARKS_VOCABULARY = (0, 18)
"""Before this release megatron-core marks the embedding and the output layer as split over TP only where it
initialises them (megatron/core/tensor_parallel/layers.py); unmarked, all ranks but the first are left out of
the norm of the gradient (megatron/core/optimizer/optimizer.py, get_main_grads_for_grad_norm), so that
grad_norm and clipping depend on TP. ms-swift turns the initialisation off by default."""

SWIFT_SCHEDULE = {"constant": "constant_with_warmup", "cosine": "cosine", "linear": "linear"}


def tuner_arguments(tuner: TunerConfig) -> dict[str, Any]:
    """What is trained; the same names in both backends."""
    arguments: dict[str, Any] = {
        "check_model": False,  # asks the hub: 22 s of retries on a node without network
        "tuner_type": tuner.tuner,
        "freeze_vit": tuner.freeze_vit,
        "freeze_aligner": tuner.freeze_aligner,
    }
    if tuner.tuner == "lora":
        arguments |= {
            "lora_rank": tuner.lora_rank,
            "lora_alpha": tuner.lora_alpha,
            "target_modules": ["all-linear"],
        }
    return arguments


def megatron_arguments(config: Config, tuner: TunerConfig, parallel: Parallel) -> dict[str, Any]:
    """Optimizer, batch and layout of `megatron sft` and `megatron rlhf`."""
    recompute: dict[str, Any] = {"recompute_granularity": tuner.recompute}
    if tuner.recompute == "full":
        # `selective` with a method is a ValueError (megatron_args.py:849)
        recompute |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    return {
        **tuner_arguments(tuner),
        **precision_arguments(config),
        **layout_arguments(parallel),
        "sequence_parallel": parallel.tensor > 1,  # MoE with TP > 1 requires it (mcore moe_layer.py)
        "perform_initialization": True if needs_initialization(config, parallel) else None,
        "micro_batch_size": tuner.micro_batch_size,
        "global_batch_size": tuner.global_batch_size,
        "lr": tuner.learning_rate,
        "lr_decay_style": tuner.lr_schedule,
        "lr_warmup_iters": tuner.warmup_steps,
        "weight_decay": tuner.weight_decay,
        "adam_beta2": tuner.adam_beta2,
        "train_iters": tuner.train_steps,
        "num_train_epochs": tuner.epochs,
        "seed": tuner.seed,
        # what the Megatron model does not hold (multi-token prediction) is copied from the start: without it
        # a checkpoint lacks tensors of the model (ms-swift#6644)
        "save_missing_weights": True,
        "optimizer_cpu_offload": tuner.optimizer_cpu_offload,
        "use_precision_aware_optimizer": tuner.optimizer_cpu_offload,
        **recompute,
    }


def layout_arguments(parallel: Parallel) -> dict[str, Any]:
    """How the ranks split the model."""
    return {
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "context_parallel_size": parallel.context,
        "expert_model_parallel_size": parallel.expert,
        "expert_tensor_parallel_size": parallel.expert_tensor,
    }


def needs_initialization(config: Config, parallel: Parallel) -> bool:
    """Whether weights that are loaded anyway must be initialised first, see MARKS_VOCABULARY."""
    return parallel.tensor > 1 and megatron_core_of(config) < MARKS_VOCABULARY


def swift_arguments(tuner: TunerConfig, ranks: int) -> dict[str, Any]:
    """Optimizer, batch and sharding of `swift sft` and `swift rlhf`. ranks: those with rows of their own."""
    return {
        **tuner_arguments(tuner),
        "per_device_train_batch_size": tuner.micro_batch_size,
        "gradient_accumulation_steps": accumulation_steps(tuner, ranks),
        "learning_rate": tuner.learning_rate,
        "lr_scheduler_type": SWIFT_SCHEDULE[tuner.lr_schedule],
        "warmup_steps": tuner.warmup_steps,
        "weight_decay": tuner.weight_decay,
        "adam_beta2": tuner.adam_beta2,
        "max_steps": tuner.train_steps,
        "num_train_epochs": tuner.epochs,
        "seed": tuner.seed,
        "deepspeed": None if tuner.deepspeed == "none" else tuner.deepspeed,
        "gradient_checkpointing": tuner.recompute != "none",
    }


def accumulation_steps(tuner: TunerConfig, ranks: int) -> int:
    """Micro batches per optimizer step of one rank of the swift backend.

    Raises:
        ValueError: global_batch_size is not a multiple of micro_batch_size x ranks.
    """
    per_pass = tuner.micro_batch_size * ranks
    if tuner.global_batch_size % per_pass:
        raise ValueError(
            f"global_batch_size ({tuner.global_batch_size}) must be a multiple of micro_batch_size "
            f"({tuner.micro_batch_size}) x data-parallel ranks ({ranks}) = {per_pass}"
        )
    return tuner.global_batch_size // per_pass
