"""Scaled dot-product attention.

Base of `TEDotProductAttention` (megatron/core/extensions/transformer_engine.py:1140).
"""

# ruff: noqa: ARG002 (signatures of the replaced functions)

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    dropout: float,
) -> torch.Tensor:
    """q (batch, heads, sequence, dim), k and v with as many heads or a divisor; `mask` is True if allowed."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k = k.repeat_interleave(repeats, 1)
        v = v.repeat_interleave(repeats, 1)
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, dropout_p=dropout
    )


class DotProductAttention(nn.Module):
    """Attention over (sequence, batch, heads, dim), or over packed sequences (tokens, heads, dim) in format
    "thd".

    `attn_mask_type` is "no_mask", "causal", "padding", "padding_causal" or "arbitrary"; `attention_mask` is
    True where attention is forbidden.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        softmax_scale: float | None = None,
        attention_type: str = "self",
        sequence_parallel: bool = False,
        tp_size: int = 1,
        tp_group: Any = None,
        get_rng_state_tracker: Any = None,
        layer_number: int | None = None,
    ) -> None:
        super().__init__()
        self.attention_dropout = attention_dropout
        self.qkv_format = qkv_format
        self.attn_mask_type = attn_mask_type
        self.softmax_scale = softmax_scale

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        qkv_format: str | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        attn_mask_type: str | None = None,
        **_packing: Any,
    ) -> torch.Tensor:
        """Output (sequence, batch, heads * dim), or (tokens, heads * dim) for packed sequences."""
        layout = qkv_format or self.qkv_format
        mask_type = attn_mask_type or self.attn_mask_type
        dropout = self.attention_dropout if self.training else 0.0
        if layout == "thd":
            assert cu_seqlens_q is not None
            return self._packed(q, k, v, cu_seqlens_q.tolist(), "causal" in mask_type, dropout)
        to_heads, back = ((1, 2, 0, 3), (2, 0, 1, 3)) if layout == "sbhd" else ((0, 2, 1, 3), (0, 2, 1, 3))
        q, k, v = (t.permute(*to_heads) for t in (q, k, v))
        mask = None
        if attention_mask is not None and mask_type not in ("causal", "no_mask"):
            mask = ~attention_mask
            if "causal" in mask_type:
                mask = mask & torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        out = _attend(q, k, v, mask, "causal" in mask_type, self.softmax_scale, dropout).permute(*back)
        return out.reshape(*out.shape[:2], -1)

    def _packed(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bounds: list[int],
        causal: bool,
        dropout: float,
    ) -> torch.Tensor:
        """Each sequence by itself; tokens after the last bound are padding and give zeros."""
        pieces = []
        for start, end in pairwise(bounds):
            one = [t[start:end].transpose(0, 1)[None] for t in (q, k, v)]
            out = _attend(one[0], one[1], one[2], None, causal, self.softmax_scale, dropout)[0].transpose(
                0, 1
            )
            pieces.append(out.reshape(end - start, -1))
        packed = torch.cat(pieces)
        return functional.pad(packed, (0, 0, 0, q.shape[0] - packed.shape[0]))
