"""Section `tracking`: where metrics go besides the run directory."""

from __future__ import annotations

from typing import Literal

from .base import Section, execution


class TrackingConfig(Section):
    report_to: list[Literal["tensorboard", "wandb", "swanlab"]] = execution(["tensorboard"], min_length=1)
    """Trackers, at least one: `megatron rlhf` has no word for none. Their keys (WANDB_API_KEY,
    SWANLAB_API_KEY) are read from the environment only."""

    project: str = execution("grpoflow")
    """Project name in wandb and SwanLab."""
