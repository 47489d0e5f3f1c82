"""Section `sft`: the optional warm start before GRPO."""

from __future__ import annotations

from .base import convergence, layout
from .tuner import TunerConfig


class SftConfig(TunerConfig):
    dataset: str = convergence()
    """Complete conversations, one a row, in one of the formats of `data.train`."""

    max_length: int = convergence(4096, gt=0)
    """Longest conversation in tokens."""

    nodes: int = layout(1, gt=0, le=4096)
    """Nodes of the SFT job."""
