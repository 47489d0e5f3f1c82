"""Adam with Transformer Engine's state layout, and the multi-tensor helpers, for megatron-core's optimizers.

megatron/core/optimizer/distrib_optimizer.py:25 saves and loads the distributed optimizer (Megatron-SWIFT's
default) only with this class or Apex's: PyTorch's keeps `step` per parameter instead of per group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from megatron.core.utils import (
    local_multi_tensor_applier,
    local_multi_tensor_l2_norm,
    local_multi_tensor_scale,
)

multi_tensor_applier = local_multi_tensor_applier
multi_tensor_l2norm = local_multi_tensor_l2_norm
multi_tensor_scale = local_multi_tensor_scale
FusedSGD = torch.optim.SGD


class FusedAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba, arXiv:1412.6980), or AdamW (arXiv:1711.05101) with `adam_w_mode`.

    `step` is a number in each parameter group; a parameter's state is `exp_avg` and `exp_avg_sq`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        bias_correction: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"bias_correction": bias_correction})
        self.adam_w_mode = adam_w_mode

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        if group["weight_decay"] and not self.adam_w_mode:
            gradient = gradient + group["weight_decay"] * parameter
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        correction1 = 1 - beta1 ** group["step"] if group["bias_correction"] else 1.0
        correction2 = 1 - beta2 ** group["step"] if group["bias_correction"] else 1.0
        update = (state["exp_avg"] / correction1) / (
            (state["exp_avg_sq"] / correction2).sqrt() + group["eps"]
        )
        if group["weight_decay"] and self.adam_w_mode:
            update = update + group["weight_decay"] * parameter
        parameter.sub_(group["lr"] * update)
