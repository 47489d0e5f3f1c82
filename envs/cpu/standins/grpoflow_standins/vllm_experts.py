"""Plain weights in vLLM's CPU expert layers.

`CPUUnquantizedExperts` (vllm 0.32.0, vllm/model_executor/layers/fused_moe/experts/cpu_moe.py:86) packs the
expert weights in place when the model is loaded, and only then: `UnquantizedFusedMoEMethod._setup_kernel`
(unquantized_fused_moe_method.py:191) skips it on later calls. After a weight sync the kernel reads plain
weights as packed ones, without an error. Left unpacked, the experts are computed in PyTorch from the weights
as they are.
"""

# ruff: noqa: ARG001 (signatures of the replaced functions)

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.nn import functional


def process_weights_after_loading(self: Any, layer: torch.nn.Module) -> None:
    """Leave w13 (experts, 2 * intermediate, hidden) and w2 (experts, hidden, intermediate) as they are."""


def apply_experts(
    self: Any,
    output: torch.Tensor,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: Any,
    global_num_experts: int,
    expert_map: torch.Tensor | None,
    a1q_scale: torch.Tensor | None,
    a2_scale: torch.Tensor | None,
    workspace13: torch.Tensor,
    workspace2: torch.Tensor,
    expert_tokens_meta: Any,
    apply_router_weight_on_input: bool,
) -> None:
    """Write the weighted sum of each token's experts to `output` (tokens, hidden).

    The experts of a token and their weights are `topk_ids` and `topk_weights`, both (tokens, k).
    """
    unsupported = {
        "activation": activation.value != "silu",
        "expert_map": expert_map is not None,
        "bias": self.w1_bias is not None or self.w2_bias is not None,
        "router weight on input": apply_router_weight_on_input,
    }
    if any(unsupported.values()):
        raise NotImplementedError(
            f"CPU stand-in of vLLM's experts: {[k for k, v in unsupported.items() if v]}"
        )
    total = torch.zeros(hidden_states.shape, dtype=torch.float32)
    for expert in topk_ids.unique().tolist():
        tokens, slots = (topk_ids == expert).nonzero(as_tuple=True)
        gate, up = functional.linear(hidden_states[tokens], w1[expert]).chunk(2, dim=-1)
        out = functional.linear(functional.silu(gate) * up, w2[expert])
        total.index_add_(0, tokens, out.float() * topk_weights[tokens, slots, None].float())
    output.copy_(total)


def apply(module: ModuleType) -> None:
    module.CPUUnquantizedExperts.process_weights_after_loading = process_weights_after_loading
    module.CPUUnquantizedExperts.apply = apply_experts
