"""`torch.cuda` and device "cuda" on the CPU, for code that never asks whether CUDA is there.

megatron-core 0.16.1, mcore-bridge 1.6.5 and Megatron-SWIFT 4.6.0 call it without a check, for example
mcore_bridge/bridge/gpt_bridge.py:388 `tensor.to('cuda')`, swift/megatron/utils/megatron_lm_utils.py:107
`torch.cuda.get_rng_state()`, :655 `m.cuda(...)`, :689 `torch.cuda.Stream()`,
megatron/core/tensor_parallel/random.py (random states), megatron/core/optimizer/optimizer.py
(`param.type()`). `torch.cuda.is_available()` stays False: code that asks is told the truth.
"""

# ruff: noqa: ARG005 (signatures of the replaced functions)

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
MEMORY = 8 << 30  # bytes that the one "device" claims to have


def _on_cpu(value: Any) -> Any:
    """`value`, or the CPU if it names a CUDA device."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return CPU
    return value


class CudaToCpu(TorchFunctionMode):
    """Creates and moves tensors on the CPU where "cuda" is asked for."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _on_cpu(kwargs["device"])}
        if getattr(func, "__name__", "") in ("to", "_to"):
            args = tuple(_on_cpu(arg) for arg in args)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


class Stream:
    """A CUDA stream or event on which everything is already finished."""

    cuda_stream = 0

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        return None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exc: object) -> None:
        return None

    def record(self, *_args: object) -> None:
        return None

    wait = wait_stream = wait_event = synchronize = record

    def record_event(self, *_args: object) -> Stream:
        return Stream()

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: object) -> float:
        return 0.0


class _Generators:
    """`torch.cuda.default_generators`: the CPU's generator at every index."""

    def __getitem__(self, _index: object) -> torch.Generator:
        return torch.default_generator


def _returning(value: Any) -> Callable[..., Any]:
    """A new function for each name: torch._dynamo refuses to import if one function has two names."""
    return lambda *_args, **_kwargs: value


def _type_with_cuda_name(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type` with a GPU's names: megatron-core sorts parameters by 'torch.cuda.BFloat16Tensor'."""

    def tensor_type(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return "torch.cuda." + plain(self).rsplit(".", 1)[-1]
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return plain(self, dtype, *args, **kwargs)

    return tensor_type


_mode: CudaToCpu | None = None


def install() -> None:
    """Replace `torch.cuda` for the rest of this process; the second call does nothing."""
    global _mode  # noqa: PLW0603
    if _mode is not None:
        return
    cuda: Any = torch.cuda
    cuda.current_device = _returning(CPU)
    cuda.device_count = _returning(1)
    for name in (
        "set_device",
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
        "ipc_collect",
        "init",
        "_lazy_init",
    ):
        setattr(cuda, name, _returning(None))
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, _returning(0))
    cuda._lazy_call = lambda call, **_kwargs: call()
    cuda.mem_get_info = _returning((MEMORY, MEMORY))
    cuda.memory_stats = _returning({})
    cuda.get_device_capability = _returning((8, 0))
    cuda.get_device_name = _returning("cpu")
    properties = types.SimpleNamespace(
        major=8, minor=0, multi_processor_count=1, total_memory=MEMORY, name="cpu"
    )
    cuda.get_device_properties = _returning(properties)
    cuda.get_rng_state = lambda device=None: torch.get_rng_state()
    cuda.set_rng_state = lambda new_state, device=None: torch.set_rng_state(new_state)
    cuda.manual_seed = cuda.manual_seed_all = torch.default_generator.manual_seed
    cuda.random.get_rng_state = cuda.get_rng_state
    cuda.random.set_rng_state = cuda.set_rng_state
    cuda.random.manual_seed = cuda.manual_seed
    cuda.default_generators = _Generators()
    cuda.Stream = cuda.Event = cuda.ExternalStream = Stream
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, _returning(Stream()))
    for name in ("stream", "device"):
        setattr(cuda, name, _returning(contextlib.nullcontext()))
    cuda.is_current_stream_capturing = _returning(False)
    for name in ("Float", "Long", "Int", "Half", "BFloat16", "Byte", "Double"):
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, _returning(None))

    tensor: Any = torch.Tensor
    tensor.cuda = tensor.pin_memory = lambda self, *_args, **_kwargs: self
    tensor.type = _type_with_cuda_name(torch.Tensor.type)
    module: Any = torch.nn.Module
    module.cuda = lambda self, *_args: self
    _mode = CudaToCpu()
    _mode.__enter__()
