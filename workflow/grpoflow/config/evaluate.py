"""Section `evaluate`: SFT model against GRPO model on held-out prompts."""

from __future__ import annotations

from typing import Any, Literal

from .base import Section, convergence


class BenchmarksConfig(Section):
    datasets: list[str] = convergence(min_length=1)
    """Data sets by EvalScope's names, such as gsm8k."""

    limit: int | None = convergence(None, gt=0)
    """Rows of each data set (of each of its subsets), the first ones; all by default."""

    args: dict[str, Any] = convergence({})
    """Arguments of `swift eval` that are not modelled here, such as eval_dataset_args and
    eval_generation_config."""


class EvaluateConfig(Section):
    engine: Literal["vllm", "transformers"] = convergence("vllm")
    """Engine of `swift infer`."""

    samples: int = convergence(8, gt=0)
    """Completions per prompt, sampled as in training."""

    checkpoints: Literal["none", "all"] | list[int] = convergence("none")
    """Steps of the run that are evaluated as well, for a curve; `all` takes those that were kept
    (`trainer.save_total_limit`)."""

    pass_reward: float = convergence(1.0)
    """Reward from which on a completion counts as passed in pass@k."""

    batch_size: int = convergence(64, gt=0)
    """Prompts per batch (engine: transformers)."""

    seed: int = convergence(0, ge=0)
    """Seed of the sampling and of the bootstrap."""

    confidence: float = convergence(0.95, gt=0, lt=1)
    """Coverage of the bootstrap interval."""

    benchmarks: BenchmarksConfig | None = convergence(None, later=True)
    """Public benchmarks, run on both models with `swift eval`; cluster.environment needs evalscope for it."""
