"""Section `data`: the prompts of GRPO."""

from __future__ import annotations

from typing import Literal

from .base import Section, convergence, execution


class DataConfig(Section):
    train: str = convergence()
    """Prompts, one a row, with the columns that the reward functions read: a JSONL, JSON, CSV or Parquet
    file, a directory of them, or one that `Dataset.save_to_disk` wrote. A prompt is `messages`,
    `conversations`, or a text in `query`, `prompt`, `question`, `problem` or `instruction`."""

    val: str = convergence()
    """Held-out prompts, used by evaluation only, in the form of `train`."""

    max_length: int = convergence(2048, gt=0)
    """Longest prompt in tokens. Longer prompts are dropped (see `on_invalid`)."""

    truncation_strategy: Literal["delete", "left"] = convergence("delete")
    """What happens to a prompt that is longer: it is dropped, or the trainer cuts it at the left, which can
    cut image placeholders."""

    image_max_tokens: int | None = convergence(None, gt=0)
    """IMAGE_MAX_TOKEN_NUM (1 token = 32x32 px), the same for cache, server, trainer and evaluation."""

    on_invalid: Literal["drop", "refuse"] = convergence("drop")
    """Whether invalid rows are dropped and listed in rejected.jsonl, or stop the stage."""

    grpo_cached: bool = convergence(False)
    """Let `megatron rlhf` read the prompts with --cached_dataset instead of --dataset. It works although
    ms-swift does not document it; `swift rlhf` refuses it."""

    reward_examples: str | None = execution(None)
    """JSONL of rows with the columns of the data and with `right` and `wrong` (a completion or a list of
    them): the weighted reward must tell them apart."""

    reward_seconds: float = execution(30.0, gt=0)
    """Longest that one call of a reward function may take in the dry run; GPUs wait for it at every step."""

    num_proc: int = execution(4, gt=0)
    """Processes that read and tokenise the data."""
