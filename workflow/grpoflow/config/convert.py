"""Section `convert`: from Hugging Face to Megatron-core."""

from __future__ import annotations

from typing import Literal

from .base import Section, execution


class ConvertConfig(Section):
    mode: Literal["mcore", "direct"] = execution("mcore")
    """`mcore` converts and verifies once; `direct` lets the trainer load the Hugging Face directory."""

    test_precision: bool = execution(False)
    """Compare the logits of both models after the conversion (`--test_convert_precision`)."""
