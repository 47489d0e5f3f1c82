"""accelerate knows that a torchrun job on CPUs is a distributed one.

`PartialState._prepare_backend` (accelerate 1.15.0, state.py:742) says MULTI_CPU only when it is asked for a
CPU, and the GRPO trainers do not ask (`PartialState()` in accelerate/utils/operations.py:436, 516, 688);
without CUDA it then says NO. So `gather` and `gather_object` return the caller's own data instead of a copy
of everybody's: on several ranks the shapes do not match, and on one rank `--log_completions true` strips the
answers in place, after which the run goes on with loss 0, grad_norm 0, mean_length 0 and exit code 0.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def apply(module: ModuleType) -> None:
    prepare = module.PartialState._prepare_backend

    def _prepare_backend(
        self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> Any:
        del cpu
        return prepare(self, True, sagemaker_dp, backend)

    module.PartialState._prepare_backend = _prepare_backend
