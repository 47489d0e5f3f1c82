"""Device functions of `swift.utils.torch_utils` (ms-swift 4.6.0) on a machine without accelerator.

* `get_device_count` (line 177) and `get_physical_device_count` return 0 there, and `swift rollout` then
  refuses to start (`local_device_count (0) must be >= ...`, swift/arguments/deploy_args.py:143). One device
  per local process is reported.
* `synchronize` (line 64) falls through to `torch.cuda.synchronize`, which raises without CUDA; the weight
  sync calls it (swift/rlhf_trainers/vllm_client.py:69, swift/pipelines/infer/rollout.py:193).
* `get_torch_device` (line 155) returns `torch.cpu`, which has no `device` context; the sender of the weight
  sync needs one (swift/rlhf_trainers/vllm_client.py:66).
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch


class _CpuDevice:
    """`torch.cpu` plus the two names of an accelerator module that ms-swift calls."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def device(self, _device: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def empty_cache(self) -> None:
        return None


_CPU_DEVICE = _CpuDevice()


def apply(module: Any) -> None:
    module.get_device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    module.get_physical_device_count = module.get_device_count
    module.synchronize = lambda _device=None: None
    module.get_torch_device = lambda: _CPU_DEVICE
