"""Section `export`: the model that people get."""

from __future__ import annotations

from typing import Literal

from .base import Section, convergence


class ExportConfig(Section):
    checkpoint: Literal["last", "best"] | int = convergence("last")
    """Step to evaluate and export, the last one, or the `best` of those that were kept
    (`trainer.save_total_limit`) by `metric`."""

    metric: str = convergence("reward")
    """Key of logging.jsonl, higher is better: its mean over the steps up to a checkpoint decides which one is
    `best`. Measured in training, so that the held-out data stay held out."""

    lora: Literal["merged", "adapter"] = convergence("merged", later=True)
    """What is exported of a LoRA run: the whole model with the adapter merged into it, or the adapter alone,
    as PEFT loads it onto the model that training started from."""
