"""Plain weights in vLLM's CPU linear layers.

`dispatch_cpu_unquantized_gemm` (vllm 0.32.0, vllm/model_executor/layers/utils.py:470) packs linear and
convolution weights for oneDNN or AMX and keeps computing from the packed copy. A weight sync writes
`layer.weight`; the server then answers from a mixture of old and new weights, without an error. Left
unpacked, `layer.weight` is what is computed with.
"""

# ruff: noqa: ARG001 (signatures of the replaced functions)

from __future__ import annotations

from typing import Any

import torch


def dispatch_cpu_unquantized_gemm(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Compute with `layer.weight` itself; convolution and expert weights (3 dimensions) stay as they are."""
    if layer.weight.is_meta or layer.weight.ndim == 2:
        layer.cpu_linear = torch.nn.functional.linear


def apply(module: Any) -> None:
    module.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm
