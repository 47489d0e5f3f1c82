"""Plain weights in the convolution of vLLM's Gated DeltaNet on a CPU.

vllm 0.32.0 calls its convolution kernels with `is_weight_packed=True`
(vllm/model_executor/layers/mamba/ops/cpu/gdn_attention.py:254, 314), because `dispatch_cpu_unquantized_gemm`
packed the weight at load time. `vllm_linear` does not, so that a weight sync can overwrite it: the kernels
must be told, and want (dim, width) instead of (dim, 1, width).
"""

# ruff: noqa: ARG001 (signatures of the replaced functions)

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch


def _with_plain_weight(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(*, weight: torch.Tensor, is_weight_packed: bool, **kwargs: object) -> torch.Tensor:
        return kernel(weight=weight.view(weight.shape[0], -1), is_weight_packed=False, **kwargs)

    return call


def apply(module: ModuleType) -> None:
    for name in ("_causal_conv1d_fwd_cpu", "_causal_conv1d_update_cpu"):
        setattr(module, name, _with_plain_weight(getattr(module, name)))
