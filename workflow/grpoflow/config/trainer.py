"""Section `trainer`: GRPO."""

from __future__ import annotations

from typing import Literal

from .base import convergence, execution, layout
from .tuner import TunerConfig


class TrainerConfig(TunerConfig):
    nodes: int = layout(1, gt=0, le=4096)
    """Nodes of the trainer."""

    gpus: int | None = layout(None, gt=0, le=64)
    """GPUs of the trainer on its single node, when the node is shared with the rollout server."""

    num_generations: int = convergence(8, gt=1)
    """Completions per prompt (the group of GRPO)."""

    steps_per_generation: int = convergence(1, gt=0)
    """Optimizer steps per rollout: one rollout makes global_batch_size x steps_per_generation completions."""

    max_completion_length: int = convergence(1024, gt=0)
    """Longest completion in tokens."""

    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"] = convergence("grpo")
    """Normalisation of the loss."""

    beta: float = convergence(0.04, ge=0)
    """Weight of the KL term. 0 saves no memory in full-parameter Megatron GRPO, which loads the reference."""

    epsilon: float = convergence(0.2, gt=0)
    """Lower clip range of the policy ratio."""

    epsilon_high: float | None = convergence(None, gt=0)
    """Upper clip range; `epsilon` by default."""

    overlong_filter: bool = convergence(False)
    """Leave completions that were cut at max_completion_length out of the loss."""

    dynamic_sample: bool = convergence(False)
    """Sample again for groups whose rewards are all equal."""

    log_completions: bool = execution(True)
    """Write every completion to completions.jsonl."""

    save_steps: int = execution(50, gt=0)
    """Steps between checkpoints (a multiple of steps_per_generation): the most work a failure can cost."""

    save_total_limit: int = execution(2, ge=2, le=1000)
    """Checkpoints kept."""

    save_optimizer: bool = execution(True)
    """Save optimizer and random state; without them a run cannot be resumed."""

    logging_steps: int = execution(1, gt=0)
    """Steps between lines of logging.jsonl."""

    stop_margin: int = execution(300, ge=0)
    """Seconds before the end of the job from which on no further step is started: the run is saved, and the
    job goes back into the queue. Longer where the longest step and save so far need more."""

    stall_timeout: int = execution(1800, gt=0)
    """Seconds without a new line in logging.jsonl after which an attempt counts as hung and is ended; ten
    times the longest interval so far if that is more."""

    quality_gate: Literal["stop", "warn"] = execution("stop")
    """What follows when the first rollout after a weight sync is garbage, has rewards that are all equal or
    not finite, or other log-probabilities than the trainer computes, or the loss is not finite: `stop` ends
    the run, `warn` only raises an alarm (`grpoflow status`), as for what goes wrong later on."""

    max_restarts: int = execution(2, ge=0)
    """Attempts in a row that may end without a new checkpoint and be tried again. A run that gets further is
    restarted as often as its wall-time needs."""
