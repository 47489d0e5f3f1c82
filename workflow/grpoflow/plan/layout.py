"""Parallel layouts of the trainer: which are legal for a model, and all of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import lcm

from grpoflow.models.architecture import Architecture
from grpoflow.plan.problem import Problem, check_positive, divisors, nearest, nearest_multiples


@dataclass(frozen=True)
class LayoutSpec:
    """Degrees of parallelism of the trainer.

    Attributes:
        world_size: Trainer ranks.
        tp, pp, cp: Tensor, pipeline and context parallelism of the dense layers.
        ep: Expert parallelism.
        etp: Tensor parallelism inside an expert. 1 is the default of Megatron-SWIFT
            (swift megatron/arguments/megatron_args.py:645), not of Megatron-core, where it follows tp.
        sequence_parallel: Split activations between the TP ranks outside of the matrices too; no effect with
            tp 1.
        first_stage_layers, last_stage_layers: Layers of the first and last pipeline stage, where uneven.
    """

    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = True
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None

    @property
    def model_size(self) -> int:
        """Ranks that hold one replica of the dense layers and see the same samples: TP * PP * CP."""
        return self.tp * self.pp * self.cp

    @property
    def expert_model_size(self) -> int:
        """Ranks that hold one replica of all experts: ETP * EP * PP."""
        return self.etp * self.ep * self.pp

    @property
    def dp_size(self) -> int:
        """Data-parallel size; EP is not part of it (swift megatron/arguments/megatron_args.py:337,1000)."""
        return self.world_size // self.model_size

    @property
    def edp_size(self) -> int:
        """Expert data-parallel size (megatron/core/parallel_state.py:788)."""
        return self.world_size // self.expert_model_size

    def stage_layers(self, layers: int, stage: int) -> float:
        """Layers of a pipeline stage; a fraction where ``layers`` does not divide, which :func:`check_layout`
        refuses."""
        first, last = self.first_stage_layers, self.last_stage_layers
        if stage == 0 and first is not None:
            return first
        if stage == self.pp - 1 and last is not None:
            return last
        fixed = [count for count in (first, last) if count is not None]
        return (layers - sum(fixed)) / max(self.pp - len(fixed), 1)

    def __str__(self) -> str:
        return f"TP{self.tp} PP{self.pp} CP{self.cp} EP{self.ep} ETP{self.etp} on {self.world_size} GPUs"


def check_world_size(layout: LayoutSpec) -> list[Problem]:
    """W must be a multiple of TP*PP*CP and of ETP*EP*PP (megatron/core/parallel_state.py:740,792)."""
    groups = (
        ("dense", layout.model_size, f"TP {layout.tp} x PP {layout.pp} x CP {layout.cp}"),
        ("expert", layout.expert_model_size, f"ETP {layout.etp} x EP {layout.ep} x PP {layout.pp}"),
    )
    legal = nearest_multiples(layout.world_size, lcm(layout.model_size, layout.expert_model_size))
    return [
        Problem(
            f"world_size_fits_{kind}_layout",
            "world_size",
            layout.world_size,
            f"must be a multiple of {formula} = {size}",
            legal,
        )
        for kind, size, formula in groups
        if layout.world_size % size
    ]


def check_layout(
    arch: Architecture,
    layout: LayoutSpec,
    *,
    gpus_per_node: int = 8,
    megatron_core: tuple[int, int] = (0, 18),
) -> list[Problem]:
    """All problems of a layout for a model under a release of megatron-core.

    The world-size rules are the same as in :func:`grpoflow.plan.batch.check_batch`; callers that show both
    drop equals.
    """
    problems = check_positive(layout)
    if problems:
        return problems
    dense = _check_dense(arch, layout, gpus_per_node, megatron_core)
    return check_world_size(layout) + dense + _check_expert(arch, layout)


def _check_dense(
    arch: Architecture, layout: LayoutSpec, gpus_per_node: int, megatron_core: tuple[int, int]
) -> list[Problem]:
    return (
        _check_tensor(arch, layout, megatron_core)
        + _check_context(arch, layout, megatron_core)
        + _check_pipeline(arch, layout)
        + _check_node(layout, gpus_per_node)
    )


def _legal(value: int, limit: int, rule: Callable[[int], bool]) -> tuple[int, ...]:
    return nearest(value, [candidate for candidate in range(1, limit + 1) if rule(candidate)], 3)


def _kv_rule(arch: Architecture, tp: int, megatron_core: tuple[int, int]) -> bool:
    """TP divides the KV heads, or from megatron-core 0.16 on is a multiple of them
    (megatron/core/transformer/transformer_config.py, num_query_groups)."""
    return arch.kv_heads % tp == 0 or (megatron_core >= (0, 16) and tp % arch.kv_heads == 0)


def _tensor_rule(arch: Architecture, tp: int, megatron_core: tuple[int, int]) -> bool:
    widths = [arch.attention_heads, arch.gdn.key_heads, arch.gdn.value_heads]
    widths.append(arch.moe.shared_intermediate_size if arch.moe else arch.intermediate_size or tp)
    return all(width % tp == 0 for width in widths) and _kv_rule(arch, tp, megatron_core)


def _check_tensor(arch: Architecture, layout: LayoutSpec, megatron_core: tuple[int, int]) -> list[Problem]:
    tp = layout.tp
    width_key = "shared_expert_intermediate_size" if arch.moe else "intermediate_size"
    width = arch.moe.shared_intermediate_size if arch.moe else arch.intermediate_size or tp
    legal = _legal(tp, arch.attention_heads, lambda size: _tensor_rule(arch, size, megatron_core))
    problems = [
        Problem(
            f"tp_divides_{key}",
            "tensor_model_parallel_size",
            tp,
            f"must divide {key} {count} of the model, of which every rank has an equal part",
            legal,
        )
        for key, count in (
            ("num_attention_heads", arch.attention_heads),
            ("linear_num_key_heads", arch.gdn.key_heads),
            ("linear_num_value_heads", arch.gdn.value_heads),
            (width_key, width),
        )
        if count % tp
    ]
    if not _kv_rule(arch, tp, megatron_core):
        version = ".".join(map(str, megatron_core))
        relation = (
            "divide or be a multiple of" if megatron_core >= (0, 16) else f"(megatron-core {version}) divide"
        )
        why = f"must {relation} num_key_value_heads {arch.kv_heads}"
        problems.append(Problem("tp_fits_kv_heads", "tensor_model_parallel_size", tp, why, legal))
    if arch.moe and tp > 1 and not layout.sequence_parallel:
        why = (
            f"a mixture of experts with TP {tp} needs it, megatron-core stops without "
            "(megatron/core/transformer/moe/moe_layer.py)"
        )
        problems.append(Problem("moe_needs_sequence_parallel", "sequence_parallel", False, why, (True,)))
    return problems


def _check_context(arch: Architecture, layout: LayoutSpec, megatron_core: tuple[int, int]) -> list[Problem]:
    """Context parallelism splits the GDN heads once more, by an all-to-all that megatron-core has since
    0.18."""
    if layout.cp == 1:
        return []
    if megatron_core < (0, 18):
        version = ".".join(map(str, megatron_core))
        why = (
            f"gated delta nets do not support it in megatron-core {version}; it needs 0.18 (and "
            "mcore-bridge 1.1)"
        )
        return [Problem("cp_needs_megatron_core", "context_parallel_size", layout.cp, why, (1,))]
    groups = layout.tp * layout.cp
    heads = (arch.gdn.key_heads, arch.gdn.value_heads)
    if all(count % groups == 0 for count in heads):
        return []
    why = (
        f"TP x CP = {groups} must divide linear_num_key_heads {heads[0]} and linear_num_value_heads "
        f"{heads[1]} (megatron/core/transformer/transformer_config.py)"
    )
    legal = _legal(layout.cp, heads[0], lambda cp: all(count % (layout.tp * cp) == 0 for count in heads))
    return [Problem("tp_cp_divide_gdn_heads", "context_parallel_size", layout.cp, why, legal)]


def _check_pipeline(arch: Architecture, layout: LayoutSpec) -> list[Problem]:
    """Every stage has the same number of layers, except the first and the last where they are given
    (megatron/core/transformer/transformer_block.py, get_num_layers_to_build)."""
    given = {
        key: count
        for key, count in (
            ("decoder_first_pipeline_num_layers", layout.first_stage_layers),
            ("decoder_last_pipeline_num_layers", layout.last_stage_layers),
        )
        if count is not None
    }
    if given and layout.pp == 1:
        why = (
            "is only allowed with pipeline_model_parallel_size > 1 (swift "
            "megatron/arguments/megatron_args.py:885)"
        )
        return [Problem("uneven_stages_need_pp", key, count, why, (None,)) for key, count in given.items()]
    rest, stages = arch.layers - sum(given.values()), layout.pp - len(given)
    even = rest == 0 if stages == 0 else rest > 0 and rest % stages == 0
    if even:
        return []
    if given:
        key, count = next(iter(given.items()))
        others = arch.layers - (sum(given.values()) - count)

        def fits(layers: int) -> bool:
            left = others - layers
            return left == 0 if stages == 0 else left > 0 and left % stages == 0

        why = f"leaves {rest} of {arch.layers} layers for {stages} equal stages"
        return [Problem("layers_fill_the_stages", key, count, why, _legal(count, arch.layers, fits))]
    why = (
        f"must divide num_hidden_layers {arch.layers}, or give decoder_first_pipeline_num_layers and "
        "decoder_last_pipeline_num_layers"
    )
    legal = nearest(layout.pp, divisors(arch.layers), 3)
    return [Problem("pp_divides_layers", "pipeline_model_parallel_size", layout.pp, why, legal)]


def _check_expert(arch: Architecture, layout: LayoutSpec) -> list[Problem]:
    if arch.moe is None:
        nothing = "there are no experts to split, and ms-swift takes 1 without a word"
        return [
            Problem(
                "dense_has_no_experts", key, value, f"{arch.model_type} is a dense model: {nothing}", (1,)
            )
            for key, value in (
                ("expert_model_parallel_size", layout.ep),
                ("expert_tensor_parallel_size", layout.etp),
            )
            if value > 1
        ]
    problems = []
    if arch.moe.experts % layout.ep:
        why = f"must divide num_experts {arch.moe.experts} (megatron/core/transformer/moe/moe_layer.py)"
        legal = nearest(layout.ep, divisors(arch.moe.experts), 3)
        problems.append(Problem("ep_divides_experts", "expert_model_parallel_size", layout.ep, why, legal))
    width = arch.moe.intermediate_size
    if width % layout.etp:
        why = f"must divide moe_intermediate_size {width} of the model, of which every rank has an equal part"
        legal = nearest(layout.etp, divisors(width), 3)
        problems.append(
            Problem("etp_divides_expert_width", "expert_tensor_parallel_size", layout.etp, why, legal)
        )
    if layout.ep == 1 and layout.etp != layout.tp:
        problems.append(_unsummed_experts(arch.moe.experts, layout))
    return problems


def _unsummed_experts(experts: int, layout: LayoutSpec) -> Problem:
    """Expert gradients are reduced over the expert data-parallel ranks only with EP > 1. With EP 1 expert
    weights carry `allreduce = True` (megatron/core/extensions/transformer_engine.py, TEGroupedLinear, 0.16.0
    to 0.18.0) and are reduced over the dense data-parallel ranks
    (megatron/core/distributed/distributed_data_parallel.py). Those leave out the TP ranks, of which each has
    seen its own part of the sequence; with ETP above TP they mix the parts of an expert."""
    why = (
        f"with TP {layout.tp} and ETP {layout.etp} the gradients of the experts are summed over the wrong "
        "ranks: each TP rank sees a part of every sequence, and the copies of an expert drift apart without "
        f"an error. Split the experts, or give the experts TP's size too (expert_tensor: {layout.tp})"
    )
    rest = layout.world_size // (layout.etp * layout.pp) if layout.world_size else experts
    legal = nearest(layout.tp, [size for size in divisors(experts) if size > 1 and rest % size == 0], 3)
    return Problem("ep1_needs_etp_equal_tp", "expert_model_parallel_size", layout.ep, why, legal)


def _check_node(layout: LayoutSpec, gpus_per_node: int) -> list[Problem]:
    """Two all-gathers and two reduce-scatters per layer: across nodes they cost more than the layer
    itself."""
    if layout.tp <= gpus_per_node:
        return []
    why = (
        f"more than the {gpus_per_node} GPUs of a node; every layer then waits for the network between nodes"
    )
    legal = nearest(layout.tp, divisors(gpus_per_node), 1)
    return [Problem("tp_within_node", "tensor_model_parallel_size", layout.tp, why, legal, "warning")]


def enumerate_layouts(
    arch: Architecture,
    world_size: int,
    *,
    gpus_per_node: int = 8,
    megatron_core: tuple[int, int] = (0, 18),
) -> Iterator[LayoutSpec]:
    """Every legal layout with even stages, TP within a node and ETP 1.

    ETP above 1 is left out: it splits matrices that are already narrow, where EP splits whole experts.
    """
    degrees = divisors(world_size)
    expert_degrees = (1,) if arch.moe is None else tuple(d for d in degrees if arch.moe.experts % d == 0)
    for pp in degrees:
        for tp in (degree for degree in degrees if degree <= gpus_per_node):
            for cp in degrees:
                dense = LayoutSpec(world_size, tp, pp, cp)
                if world_size % dense.model_size or _check_dense(arch, dense, gpus_per_node, megatron_core):
                    continue
                for ep in expert_degrees:
                    layout = replace(dense, ep=ep)
                    if not check_world_size(layout) and not _check_expert(arch, layout):
                        yield layout


def check_vllm_tp(arch: Architecture, tp: int) -> list[Problem]:
    """Heads that vLLM splits between its TP ranks (vllm model_executor/layers/mamba/gdn, models/qwen3_5.py);
    KV heads are replicated where there are fewer of them than ranks."""

    def fits(size: int) -> bool:
        kv = arch.kv_heads % size == 0 or size % arch.kv_heads == 0
        return kv and all(
            count % size == 0 for count in (arch.attention_heads, arch.gdn.key_heads, arch.gdn.value_heads)
        )

    if fits(tp):
        return []
    why = (
        f"must divide num_attention_heads {arch.attention_heads}, linear_num_key_heads {arch.gdn.key_heads} "
        f"and linear_num_value_heads {arch.gdn.value_heads}, and divide or be a multiple of "
        f"num_key_value_heads {arch.kv_heads}"
    )
    legal = _legal(tp, arch.attention_heads, fits)
    return [Problem("vllm_tp_divides_heads", "vllm_tensor_parallel_size", tp, why, legal)]
