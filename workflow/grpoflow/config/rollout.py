"""Section `rollout`: generation during GRPO."""

from __future__ import annotations

from typing import Any, Literal

from .base import Section, convergence, execution


class RolloutConfig(Section):
    mode: Literal["server", "colocate"] = execution("server")
    """`server`: `swift rollout` on GPUs of its own. `colocate`: vLLM inside the trainer, on the same GPUs."""

    nodes: int = execution(1, ge=0, le=4096)
    """Nodes that serve; 0 when the trainer's node is shared (give `gpus`)."""

    gpus: int | None = execution(None, gt=0, le=64)
    """GPUs of the server on the trainer's node, with `nodes: 0`."""

    tensor_parallel_size: int = execution(1, gt=0)
    """GPUs over which vLLM splits one copy of the model."""

    gpu_memory_utilization: float = execution(0.9, gt=0, lt=1)
    """Share of GPU memory that vLLM takes; never all, since CUDA itself needs some."""

    max_num_seqs: int = execution(256, gt=0)
    """Sequences that one vLLM engine generates at once; in colocate mode never more than its ranks' share of
    the completions of a rollout."""

    enforce_eager: bool = execution(False)
    """No CUDA graphs."""

    limit_images: int = execution(0, ge=0)
    """Images per prompt that the server accepts."""

    temperature: float = convergence(1.0, gt=0)
    """Sampling temperature."""

    top_p: float = convergence(1.0, gt=0, le=1)
    """Nucleus sampling."""

    top_k: int = convergence(-1, ge=-1)
    """Sample among the k likeliest tokens; -1 for all."""

    startup_timeout: int = execution(1800, gt=0)
    """Seconds within which every server must be healthy."""

    engine_args: dict[str, Any] = execution({})
    """Arguments of the vLLM engine itself (`vllm_engine_kwargs`), for rollout and evaluation alike, e.g.
    gdn_prefill_backend: triton on a Hopper GPU without FlashInfer."""

    args: dict[str, Any] = execution({})
    """Arguments of `swift rollout` that are not modelled here."""
