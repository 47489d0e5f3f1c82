"""Section `data`: the prompts of GRPO."""

from __future__ import annotations

from typing import Literal

from .base import Section, convergence, execution


class DataConfig(Section):
    train: str = convergence()
    """JSONL with `messages` (and the columns that the reward functions read), one prompt a row."""

    val: str = convergence()
    """JSONL of held-out prompts, used by evaluation only."""

    max_length: int = convergence(2048, gt=0)
    """Longest prompt in tokens. Longer prompts are dropped (see `on_invalid`)."""

    truncation_strategy: Literal["delete", "left"] = convergence("delete")
    """What the trainer does with a prompt that is still too long. `left` can cut image placeholders."""

    image_max_tokens: int | None = convergence(None, gt=0)
    """IMAGE_MAX_TOKEN_NUM (1 token = 32x32 px), the same for cache, server, trainer and evaluation."""

    on_invalid: Literal["drop", "refuse"] = convergence("drop")
    """Whether invalid rows are dropped and listed in rejected.jsonl, or stop the stage."""

    num_proc: int = execution(4, gt=0)
    """Processes that read and tokenise the data."""
