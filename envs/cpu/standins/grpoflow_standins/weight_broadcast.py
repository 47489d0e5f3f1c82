"""The NCCL broadcast of the GRPO weight sync, over the TCP store of the same process group.

Trainer (swift/rlhf_trainers/vllm_client.py:257) and rollout worker (swift/pipelines/infer/rollout.py:163) of
ms-swift 4.6.0 join a `StatelessProcessGroup` of vLLM and give it to `PyNcclCommunicator`, which loads
libnccl. This one sends the tensor through `StatelessProcessGroup.broadcast` (vllm/distributed/utils.py:281),
pickled in the store: right for megabytes.
"""

# ruff: noqa: ARG002 (signatures of the replaced functions)

from __future__ import annotations

from typing import Any

import torch


class PyNcclCommunicator:
    """The attributes and the one method that ms-swift uses."""

    def __init__(self, group: Any, device: object = None, library_path: str | None = None) -> None:
        self.group = group
        self.device = torch.device("cpu")
        self.rank: int = group.rank
        self.world_size: int = group.world_size
        self.available = True
        self.disabled = False

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        """Fill `tensor` on every rank with the values of rank `src`."""
        received = self.group.broadcast(tensor, src)
        if received is not tensor:
            tensor.copy_(received)


def apply(module: Any) -> None:
    module.PyNcclCommunicator = PyNcclCommunicator
