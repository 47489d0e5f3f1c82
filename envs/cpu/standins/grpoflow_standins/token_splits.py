"""Token counts as numbers, for the all-to-all between experts.

megatron-core 0.16.1 turns the split sizes into NumPy arrays when it copies them from the GPU
(megatron/core/transformer/moe/moe_utils.py:1078, called in token_dispatcher.py:876-892). A tensor that is on
the CPU already stays a tensor, and `all_to_all_single` refuses it as split sizes.
"""

# ruff: noqa: ARG001 (signature of the replaced function)

from __future__ import annotations

from typing import Any

import torch


def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """The tensor, as a NumPy array if asked for."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def apply(module: Any) -> None:
    module.maybe_move_tensor_to_cpu = maybe_move_tensor_to_cpu
