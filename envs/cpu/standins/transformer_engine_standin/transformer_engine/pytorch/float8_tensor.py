"""Class that no tensor is an instance of (`isinstance` checks, megatron/core/fp8_utils.py:48)."""


class Float8Tensor:
    pass
