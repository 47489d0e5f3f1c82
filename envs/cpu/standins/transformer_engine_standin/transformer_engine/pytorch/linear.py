"""Linear, LayerNormLinear and GroupedLinear with tensor and sequence parallelism.

Bases of megatron-core's layers (megatron/core/extensions/transformer_engine.py:470 `TELinear`, :711
`TELayerNormColumnParallelLinear`, :1459 `TEGroupedLinear`). Communication is megatron-core's own
(megatron.core.tensor_parallel.mappings), which has the right backward passes.
"""

# ruff: noqa: ARG002 (signatures of the replaced functions)

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from transformer_engine.pytorch.norm import normalize

InitMethod = Callable[[torch.Tensor], Any]
Tracker = Callable[[], Any]


class _Module(nn.Module):
    """What megatron-core reads from every Transformer Engine module: fp8 states, here absent."""

    fp8 = False
    fp8_calibration = False
    tp_group: Any

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        self.tp_group = tp_group

    def get_extra_state(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: object) -> None:
        return None


def _new_weight(
    rows: int,
    columns: int,
    dtype: torch.dtype | None,
    init_method: InitMethod | None,
    tracker: Tracker | None,
    tracker_name: str | None,
) -> nn.Parameter:
    """Initialised weight; with a tracker each tensor-parallel rank draws its own numbers."""
    weight = nn.Parameter(torch.empty(rows, columns, dtype=dtype))
    fork = (
        contextlib.nullcontext()
        if tracker is None
        else tracker().fork(*([tracker_name] if tracker_name else []))
    )
    with fork:
        if init_method is None:
            nn.init.normal_(weight, std=0.023)
        else:
            init_method(weight)
    return weight


def _mark_split(parameter: nn.Parameter, dim: int) -> None:
    """Mark a parameter as one that differs between tensor-parallel ranks.

    megatron-core counts a parameter without these marks on one rank only (gradient norm, zero gradients).
    Transformer Engine marks all weights of its linear layers, split or not
    (transformer_engine/pytorch/module/linear.py and grouped_linear.py, `reset_parameters`).
    """
    parameter.tensor_model_parallel = True
    parameter.partition_dim = dim
    parameter.partition_stride = 1


class Linear(_Module):
    """y = x W^T + b over the last dimension; x is (sequence, batch, in) or (tokens, in).

    parallel_mode "column" splits the output over the ranks of `tp_group`, "row" the input (and adds the
    partial results), None nothing. With `sequence_parallel` the first dimension of the input (column) or
    output (row) is split too.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Tracker | None = None,
        rng_tracker_name: str | None = None,
        init_method: InitMethod | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        if fuse_wgrad_accumulation:
            raise NotImplementedError(
                "CPU stand-in of Transformer Engine: use --gradient_accumulation_fusion false"
            )
        self.parallel_mode = parallel_mode
        self.tp_size = tp_size
        self.tp_group = tp_group
        self.sequence_parallel = sequence_parallel and tp_size > 1
        self.return_bias = return_bias
        self.use_bias = bias
        self.in_features = in_features // tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // tp_size if parallel_mode == "column" else out_features
        self.weight = _new_weight(
            self.out_features,
            self.in_features,
            params_dtype,
            init_method,
            get_rng_state_tracker,
            rng_tracker_name,
        )
        self.bias = nn.Parameter(torch.zeros(self.out_features, dtype=params_dtype)) if bias else None
        _mark_split(self.weight, 1 if parallel_mode == "row" else 0)
        if self.bias is not None and parallel_mode == "column":
            _mark_split(self.bias, 0)
        if self.bias is not None and parallel_mode == "row":
            self.bias.sequence_parallel = self.sequence_parallel

    def forward(self, x: torch.Tensor, is_first_microbatch: bool | None = None) -> Any:
        return self._linear(x)

    def _linear(self, x: torch.Tensor) -> Any:
        # here and not at the top, because megatron-core imports this module
        from megatron.core.tensor_parallel import mappings  # noqa: PLC0415

        parallel = self.tp_size > 1
        if self.parallel_mode == "column" and parallel:
            if self.sequence_parallel:
                x = mappings.gather_from_sequence_parallel_region(x, group=self.tp_group)
            else:
                x = mappings.copy_to_tensor_model_parallel_region(x, group=self.tp_group)
        # in row mode each rank holds a part of the sum: the bias is added once, after it
        bias_now = None if self.return_bias or self.parallel_mode == "row" else self.bias
        y = functional.linear(x, self.weight.to(x.dtype), None if bias_now is None else bias_now.to(x.dtype))
        if self.parallel_mode == "row":
            if parallel and self.sequence_parallel:
                y = mappings.reduce_scatter_to_sequence_parallel_region(y, group=self.tp_group)
            elif parallel:
                y = mappings.reduce_from_tensor_model_parallel_region(y, group=self.tp_group)
            if self.bias is not None and not self.return_bias:
                y = y + self.bias.to(y.dtype)
        return (y, self.bias) if self.return_bias else y


class LayerNormLinear(Linear):
    """`Linear` of the normalised input."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        normalization: str = "LayerNorm",
        return_layernorm_output: bool = False,
        zero_centered_gamma: bool = False,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_features,
            out_features,
            sequence_parallel=sequence_parallel,
            params_dtype=params_dtype,
            **kwargs,
        )
        if return_layernorm_output:
            raise NotImplementedError("CPU stand-in of Transformer Engine: no return_layernorm_output")
        self.eps = eps
        self.normalization = normalization
        self.zero_centered_gamma = zero_centered_gamma
        fill = torch.zeros if zero_centered_gamma else torch.ones
        self.layer_norm_weight = nn.Parameter(fill(in_features, dtype=params_dtype))
        self.layer_norm_weight.sequence_parallel = self.sequence_parallel
        self.layer_norm_bias: nn.Parameter | None = None
        if normalization == "LayerNorm":
            self.layer_norm_bias = nn.Parameter(torch.zeros(in_features, dtype=params_dtype))
            self.layer_norm_bias.sequence_parallel = self.sequence_parallel

    def forward(self, x: torch.Tensor, is_first_microbatch: bool | None = None) -> Any:
        return self._linear(
            normalize(
                x,
                self.layer_norm_weight,
                self.layer_norm_bias,
                self.eps,
                self.normalization,
                self.zero_centered_gamma,
            )
        )


class LayerNormMLP(_Module):
    """Only the name, for PEFT, which asks of every module whether it is one (peft/tuners/lora/te.py:130). No
    module of Megatron-core is."""


class GroupedLinear(_Module):
    """One weight per expert: rows of x (tokens, in), sorted by expert, go through `weight0`, `weight1`, ...
    in turn.

    Communication over experts and tensor-parallel ranks is the token dispatcher's
    (transformer_engine.py:1547).
    """

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Tracker | None = None,
        rng_tracker_name: str | None = None,
        init_method: InitMethod | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = None,
        ub_name: str | None = None,
    ) -> None:
        super().__init__()
        if fuse_wgrad_accumulation:
            raise NotImplementedError(
                "CPU stand-in of Transformer Engine: use --gradient_accumulation_fusion false"
            )
        self.fp8_meta = {"fp8_checkpoint": False}  # read by TEGroupedLinear's state merging
        self.num_gemms = num_gemms
        self.parallel_mode = parallel_mode
        self.tp_size = tp_size
        self.tp_group = tp_group
        self.use_bias = bias
        self.return_bias = return_bias
        self.in_features = in_features // tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // tp_size if parallel_mode == "column" else out_features
        for i in range(num_gemms):
            weight = _new_weight(
                self.out_features,
                self.in_features,
                params_dtype,
                init_method,
                get_rng_state_tracker,
                rng_tracker_name,
            )
            _mark_split(weight, 1 if parallel_mode == "row" else 0)
            self.register_parameter(f"weight{i}", weight)
            if bias:
                self.register_parameter(
                    f"bias{i}", nn.Parameter(torch.zeros(self.out_features, dtype=params_dtype))
                )

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        return None

    def forward(self, x: torch.Tensor, m_splits: Any, is_first_microbatch: bool | None = None) -> Any:
        splits = m_splits.tolist() if torch.is_tensor(m_splits) else list(m_splits)
        biases = [getattr(self, f"bias{i}", None) for i in range(self.num_gemms)]
        outputs = [
            functional.linear(
                rows, getattr(self, f"weight{i}").to(x.dtype), None if self.return_bias else biases[i]
            )
            for i, rows in enumerate(x.split(splits))
        ]
        y = torch.cat(outputs)
        return (y, biases) if self.return_bias else y
