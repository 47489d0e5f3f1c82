"""All LoRA layers are merged before weights go to the rollout server or into a merged checkpoint.

`merge_lora_adapters` and `unmerge_lora_adapters` (ms-swift 4.6.0 swift/megatron/trainers/base.py:603-619)
know only the LoRA layers of Megatron's linear modules. The gated delta nets of the CPU environment are those
of transformers (USE_MCORE_GDN=0: those of megatron-core need a GPU), with layers of PEFT, and were left out
without a word: server and merged checkpoint had base weights there. The base class of PEFT stands for both.
"""

from __future__ import annotations

from typing import Any

from peft.tuners.lora import LoraLayer


def apply(module: Any) -> None:
    module.LoraParallelLinear = LoraLayer
