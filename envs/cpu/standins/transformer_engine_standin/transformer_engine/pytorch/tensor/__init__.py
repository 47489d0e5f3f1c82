"""Class that no tensor is an instance of (`isinstance` checks in megatron/core/fp8_utils.py:46)."""


class QuantizedTensor:
    pass
