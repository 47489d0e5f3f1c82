"""fp8 that is always off.

megatron/core/tensor_parallel/random.py:28, mcore_bridge/model/modules/mtp_layer.py:51.
"""

from __future__ import annotations

import contextlib


class FP8GlobalStateManager:
    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def is_fp8_calibration() -> bool:
        return False

    @staticmethod
    def get_fp8_recipe() -> None:
        return None

    @staticmethod
    def get_fp8_autocast_state() -> None:
        return None

    @staticmethod
    def set_fp8_autocast_state(_state: object) -> None:
        return None

    @staticmethod
    def reset() -> None:
        return None


def fp8_autocast(enabled: bool = False, **_kwargs: object) -> contextlib.AbstractContextManager[None]:
    """A context that does nothing; raises NotImplementedError if fp8 is asked for."""
    if enabled:
        raise NotImplementedError("CPU stand-in of Transformer Engine: no fp8")
    return contextlib.nullcontext()


fp8_model_init = fp8_autocast
