"""Section `model`: the checkpoint that everything starts from."""

from __future__ import annotations

from typing import Literal

from .base import Section, convergence


class ModelConfig(Section):
    path: str = convergence()
    """Hugging Face directory to start from: the SFT checkpoint, or the base of the `sft` stage."""

    model_type: str | None = convergence(None)
    """ms-swift model type; by default the one that config.json says."""

    template: str | None = convergence(None)
    """ms-swift chat template; by default the one of the model type."""

    enable_thinking: bool = convergence(False)
    """Whether prompts open a thinking block. Passed to every program alike: a server and a trainer that
    disagree train on other tokens than were generated, without any error."""

    system: str | None = convergence(None)
    """System prompt for rows that bring none."""

    torch_dtype: Literal["bfloat16", "float16", "float32"] = convergence("bfloat16")
    """Type of the trained weights."""
