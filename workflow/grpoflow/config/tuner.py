"""Keys that SFT and GRPO share: what of the model is trained, and how the work is split."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from .base import Section, conflict, convergence, layout

Backend = Literal["megatron", "swift"]


class Parallel(Section):
    """Sizes of the parallel groups of Megatron; dp_size follows from the world size."""

    tensor: int = layout(1, gt=0)
    """TP: splits every matrix. Heads, KV heads and GDN heads must divide by it."""

    pipeline: int = layout(1, gt=0)
    """PP: splits the layers."""

    context: int = layout(1, gt=0)
    """CP: splits the sequence; Qwen3.5 needs megatron-core >= 0.18 for it."""

    expert: int = layout(1, gt=0)
    """EP: splits the experts of a MoE model."""

    expert_tensor: int = layout(1, gt=0)
    """ETP: splits the matrices of each expert."""


class TunerConfig(Section):
    backend: Backend = convergence("megatron")
    """`megatron` (Megatron-SWIFT) or `swift` (Transformers with DeepSpeed)."""

    tuner: Literal["full", "lora"] = convergence("full")
    """Train all weights or a LoRA adapter."""

    lora_rank: int = convergence(16, gt=0)
    """Rank of the adapter (tuner: lora)."""

    lora_alpha: int = convergence(32, gt=0)
    """Scale of the adapter (tuner: lora)."""

    freeze_vit: bool = convergence(True)
    """Keep the vision tower as it is."""

    freeze_aligner: bool = convergence(True)
    """Keep the projection from vision to language as it is."""

    parallel: Parallel | Literal["auto"] = layout("auto")
    """Parallel layout of Megatron, or `auto`: the best legal layout that fits in memory."""

    deepspeed: Literal["none", "zero1", "zero2", "zero3"] = layout("none")
    """Sharding of the swift backend."""

    recompute: Literal["none", "selective", "full"] = layout("selective")
    """Activations that are recomputed in the backward pass instead of kept."""

    optimizer_cpu_offload: bool = layout(False)
    """Keep the optimizer state in host memory (megatron)."""

    micro_batch_size: int = layout(1, gt=0)
    """Sequences per forward pass of one data-parallel rank."""

    global_batch_size: int = convergence(gt=0)
    """Sequences per optimizer step (GRPO: completions), over all ranks."""

    learning_rate: float = convergence(ge=0)
    """Peak learning rate."""

    lr_schedule: Literal["constant", "cosine", "linear"] = convergence("constant")
    """Learning rate after the warm-up."""

    warmup_steps: int = convergence(0, ge=0)
    """Steps over which the learning rate rises to its peak."""

    weight_decay: float = convergence(0.1, ge=0)
    """Weight decay of AdamW."""

    adam_beta2: float = convergence(0.95, gt=0, lt=1)
    """Second-moment decay of AdamW."""

    train_steps: int | None = convergence(None, gt=0)
    """Optimizer steps; give this or `epochs`."""

    epochs: int | None = convergence(None, gt=0)
    """Passes over the training data; give this or `train_steps`."""

    seed: int = convergence(42, ge=0)
    """Seed of data order and initialisation."""

    args: dict[str, Any] = convergence({})
    """Arguments of the program that are not modelled here, passed as given and checked against the
    argument catalogue of `cluster.ms_swift`."""

    @model_validator(mode="after")
    def steps_or_epochs(self) -> TunerConfig:
        if (self.train_steps is None) == (self.epochs is None):
            why = "give exactly one of train_steps and epochs"
            if self.epochs is None:
                raise conflict("train_steps", None, why, "train_steps: 100")
            legal = "train_steps: null, or epochs: null"
            raise conflict("epochs", self.epochs, f"{why}; train_steps is {self.train_steps}", legal)
        return self
