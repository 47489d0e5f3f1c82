from transformer_engine.pytorch import attention, distributed, fp8
from transformer_engine.pytorch.attention import DotProductAttention
from transformer_engine.pytorch.fp8 import fp8_autocast, fp8_model_init
from transformer_engine.pytorch.linear import GroupedLinear, LayerNormLinear, LayerNormMLP, Linear
from transformer_engine.pytorch.norm import LayerNorm, RMSNorm

__all__ = [
    "DotProductAttention",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "RMSNorm",
    "attention",
    "distributed",
    "fp8",
    "fp8_autocast",
    "fp8_model_init",
]
