"""RMSNorm and LayerNorm (megatron/core/extensions/transformer_engine.py:433, `TENorm`)."""

# ruff: noqa: ARG002 (signatures of the replaced functions)

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def normalize(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    kind: str,
    zero_centered_gamma: bool,
) -> torch.Tensor:
    """Norm over the last dimension of `x` (..., hidden), computed in float32, in the type of `x`.

    With `zero_centered_gamma` the stored weight is the scale minus one (Qwen3.5's own convention).
    """
    wide = x.float()
    scale = weight.float() + (1.0 if zero_centered_gamma else 0.0)
    if kind == "RMSNorm":
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * scale
    else:
        y = functional.layer_norm(wide, wide.shape[-1:], scale, None if bias is None else bias.float(), eps)
    return y.to(x.dtype)


class RMSNorm(nn.Module):
    kind = "RMSNorm"

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.zero_centered_gamma = zero_centered_gamma
        fill = torch.zeros if zero_centered_gamma else torch.ones
        self.weight = nn.Parameter(fill(hidden_size, dtype=params_dtype))
        # megatron-core sums the gradients of such parameters over the tensor-parallel ranks
        self.weight.sequence_parallel = sequence_parallel
        self.bias: nn.Parameter | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return normalize(x, self.weight, self.bias, self.eps, self.kind, self.zero_centered_gamma)


class LayerNorm(RMSNorm):
    kind = "LayerNorm"

    def __init__(self, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(hidden_size, **kwargs)
        self.bias = nn.Parameter(torch.zeros_like(self.weight))
        self.bias.sequence_parallel = self.weight.sequence_parallel
