"""Plain PyTorch stand-in for the part of Transformer Engine's API that Qwen3.5 training uses in float32 and
bfloat16.

megatron-core 0.16.1 (megatron/core/extensions/transformer_engine.py) and mcore-bridge 1.6.5
(mcore_bridge/patcher.py:32) cannot be used without it, and the real package cannot be imported on a CPU. It
has no fp8, no kernels, no overlap of communication: arguments for these are refused where they would change a
result, and ignored where they change speed only.

Version 1.12.0 is the last one of which megatron-core asks no `te.pytorch.ops` (transformer_engine.py:395,
1905) and no fused rope (transformer_engine.py:2336).
"""

__version__ = "1.12.0"

from transformer_engine import common, pytorch

__all__ = ["common", "pytorch"]
