"""Name imported by megatron/core/fp8_utils.py:364; never called without fp8."""

from __future__ import annotations


def cast_to_fp8(*_args: object, **_kwargs: object) -> None:
    raise NotImplementedError("CPU stand-in of Transformer Engine: no fp8")
