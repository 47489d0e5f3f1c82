"""Stand-ins that let CUDA-only code of ms-swift, Megatron and vLLM run on a CPU. Used by the CPU environment
only.

Activation: `scripts/setup cpu` writes `grpoflow_standins.pth` into the site-packages of the CPU environment
(see `install`). Every interpreter of that environment (the swift and megatron launchers, torchrun children,
spawned vLLM workers) reads it at start and calls `register()`, which only puts one finder on `sys.meta_path`;
torch is not imported. A stand-in takes effect when the module that it replaces is imported, so no program
needs a switch, an environment variable or its own set:

* importing `swift.megatron`, `mcore_bridge` or `megatron.core` (all `megatron ...` programs, and `swift
  export` when it converts) turns `torch.cuda` into the CPU and makes the `transformer_engine` stand-in
  importable. `swift rollout`, its vLLM workers and the other `swift` programs import none of the three, so
  they keep the real `torch.cuda` and see no Transformer Engine;
* the other hooks each change one module (see `HOOKS`).

A stand-in refuses to work where a real GPU is visible (`gpu.refuse_real_gpu`), because it would silently slow
down or change a real run. The refusal comes at the first hooked import and not at interpreter start: an
exception in a .pth file is printed and then ignored.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from grpoflow_standins.gpu import refuse_real_gpu

# module that is replaced -> (stand-in module, moment); the stand-in's `apply(module)` runs before or after
# the module's own code
HOOKS: dict[str, tuple[str, str]] = {
    "swift.megatron": ("megatron", "before"),
    "mcore_bridge": ("megatron", "before"),
    "megatron.core": ("megatron", "before"),
    "megatron.core.transformer.moe.moe_utils": ("token_splits", "after"),
    "swift.megatron.trainers.base": ("lora_merge", "after"),
    "torchvision": ("torchvision_ops", "before"),
    "swift.utils.torch_utils": ("swift_devices", "after"),
    "accelerate.state": ("accelerate_state", "after"),
    "vllm.distributed.device_communicators.pynccl": ("weight_broadcast", "after"),
    "vllm.model_executor.layers.utils": ("vllm_linear", "after"),
    "vllm.model_executor.layers.fused_moe.experts.cpu_moe": ("vllm_experts", "after"),
    "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention": ("vllm_conv", "after"),
}


class HookFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of `HOOKS` as the path finder does, and runs their stand-in with them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in HOOKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = _with_standin(fullname, loader.exec_module)
        return spec


def _with_standin(fullname: str, run: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    name, moment = HOOKS[fullname]

    def exec_module(module: ModuleType) -> None:
        refuse_real_gpu(fullname)
        standin = importlib.import_module(f"grpoflow_standins.{name}")
        if moment == "before":
            standin.apply(module)
        run(module)
        if moment == "after":
            standin.apply(module)

    return exec_module


def register() -> None:
    """Put the finder first on `sys.meta_path`, once."""
    if not any(isinstance(finder, HookFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, HookFinder())
