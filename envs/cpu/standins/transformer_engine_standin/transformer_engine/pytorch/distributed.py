"""Activation recomputation and the base class of a random state tracker.

megatron/core/extensions/transformer_engine.py:2262 and :2227.
"""

# ruff: noqa: ARG001 (signatures of the replaced functions)

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Callable[[], Any] | None = None,
    tp_group: object = None,
    **kwargs: Any,
) -> Any:
    """`function(*args, **kwargs)`, run again in the backward pass instead of storing its activations."""
    if distribute_saved_activations:
        raise NotImplementedError("CPU stand-in of Transformer Engine: no distributed saved activations")
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


class CudaRNGStatesTracker:
    """Base class only: Megatron-SWIFT uses megatron-core's own tracker (`te_rng_tracker` is off)."""


def activation_recompute_forward(
    activation_recompute: bool = False,
    recompute_phase: bool = False,
) -> contextlib.AbstractContextManager[None]:
    """A context that does nothing: it only tells fp8 about the phase."""
    return contextlib.nullcontext()


def is_fp8_activation_recompute_enabled() -> bool:
    return False


def in_fp8_activation_recompute_phase() -> bool:
    return False
