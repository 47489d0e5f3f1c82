"""`gather_object` and `broadcast_object_list` of accelerate over gloo.

accelerate 1.15.0 (utils/operations.py:505 and :675) looks at `PartialState().distributed_type`.
Megatron-SWIFT starts the process group itself, and with gloo accelerate then says NO instead of MULTI_GPU:
`gather_object` returns the caller's own list, not a copy of everybody's. `--log_completions true` strips the
answers of that list in place, and the run goes on with loss 0, grad_norm 0, mean_length 0 and exit code 0; on
several ranks the gathered shapes do not match.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch.distributed as dist


def gather_object(object: list[Any]) -> list[Any]:
    """The lists of all ranks, joined in rank order; the items are copies, as they are on GPUs."""
    if not dist.is_initialized():
        return object
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, object)
    return [item for items in gathered for item in items]


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """`object_list`, filled in place with the items of rank `from_process`."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(object_list, src=from_process)
    return object_list


def apply(module: ModuleType) -> None:
    module.gather_object = gather_object
    module.broadcast_object_list = broadcast_object_list
