import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from grpoflow.models.architecture import Architecture
from grpoflow.plan.auto import MEMORY_SHARE, choose_layout
from grpoflow.plan.batch import BatchSpec, check_batch
from grpoflow.plan.hardware import GPUS
from grpoflow.plan.layout import LayoutSpec, check_layout, check_vllm_tp, enumerate_layouts
from grpoflow.plan.memory import ColocateSpec, TrainerSpec, VllmSpec
from grpoflow.plan.problem import PlanError, errors_of

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
SIZES = ["0.8B", "2B", "4B", "9B", "27B", "35B-A3B", "122B-A10B", "397B-A17B"]
A800 = GPUS["A800-SXM4-80GB"]


def arch_of(size: str) -> Architecture:
    return Architecture.from_config(json.loads((CONFIGS / f"qwen3.5-{size}.json").read_text()))


def ids(arch: Architecture, layout: LayoutSpec, megatron_core: tuple[int, int] = (0, 18)) -> list[str]:
    return [problem.id for problem in errors_of(check_layout(arch, layout, megatron_core=megatron_core))]


LEGAL_DEGREES = {
    # TP at CP 1; TP x CP; PP without uneven stages
    "0.8B": ([1, 2, 4, 8], [1, 2, 4, 8, 16], [1, 2, 3, 4, 6, 8, 12, 24]),
    "2B": ([1, 2, 4, 8], [1, 2, 4, 8, 16], [1, 2, 3, 4, 6, 8, 12, 24]),
    "4B": ([1, 2, 4, 8, 16], [1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 32]),
    "9B": ([1, 2, 4, 8, 16], [1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 32]),
    "27B": ([1, 2, 4, 8], [1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 32]),
    "35B-A3B": ([1, 2, 4, 8, 16], [1, 2, 4, 8, 16], [1, 2, 4, 5, 8, 10, 20]),
    "122B-A10B": ([1, 2, 4, 8, 16], [1, 2, 4, 8, 16], [1, 2, 3, 4, 6, 8, 12, 16, 24]),
    "397B-A17B": ([1, 2, 4, 8, 16], [1, 2, 4, 8, 16], [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30]),
}


@pytest.mark.parametrize("size", SIZES)
def test_legal_degrees_of_the_published_models(size: str) -> None:
    arch = arch_of(size)
    tensor, tensor_context, pipeline = LEGAL_DEGREES[size]

    def split(tp: int) -> LayoutSpec:
        return LayoutSpec(tp, tp, etp=tp if arch.moe else 1)

    assert [tp for tp in range(1, 33) if not ids(arch, split(tp))] == tensor
    assert [cp for cp in range(1, 33) if not ids(arch, LayoutSpec(cp, cp=cp))] == tensor_context
    # The deepest pipeline, one layer per stage, is legal too; nobody runs it.
    assert [pp for pp in range(1, arch.layers // 2 + 1) if not ids(arch, LayoutSpec(pp, pp=pp))] == [
        pp for pp in pipeline if pp <= arch.layers // 2
    ]


PUBLISHED = [
    # model, GPUs, TP, PP, CP, EP: Megatron-Bridge, NeMo-RL, slime and ms-swift recipes
    ("9B", 4, 4, 1, 1, 1),
    ("27B", 16, 4, 4, 1, 1),
    ("27B", 32, 4, 2, 4, 1),
    ("35B-A3B", 16, 1, 2, 1, 8),
    ("35B-A3B", 32, 1, 4, 2, 8),
    ("35B-A3B", 16, 2, 1, 2, 16),
    ("35B-A3B", 16, 4, 2, 1, 8),
    ("122B-A10B", 48, 2, 6, 1, 8),
    ("122B-A10B", 128, 4, 8, 2, 8),
    ("397B-A17B", 128, 2, 4, 1, 32),
]


@pytest.mark.parametrize(("size", "gpus", "tp", "pp", "cp", "ep"), PUBLISHED)
def test_published_layouts_are_legal(size: str, gpus: int, tp: int, pp: int, cp: int, ep: int) -> None:
    layout = LayoutSpec(gpus, tp, pp, cp, ep)
    assert check_layout(arch_of(size), layout) == []
    assert layout in list(enumerate_layouts(arch_of(size), gpus))


def test_uneven_stages_of_the_397b() -> None:
    """60 layers on 8 stages need 6 in the first and the last."""
    arch, layout = arch_of("397B-A17B"), LayoutSpec(256, 8, 8, 1, 32)
    assert ids(arch, layout) == ["pp_divides_layers"]
    uneven = replace(layout, first_stage_layers=6, last_stage_layers=6)
    assert ids(arch, uneven) == []
    assert [uneven.stage_layers(60, stage) for stage in range(8)] == [6, 8, 8, 8, 8, 8, 8, 6]
    (problem,) = check_layout(arch, replace(uneven, first_stage_layers=7))
    assert (problem.id, problem.key, problem.legal[0]) == (
        "layers_fill_the_stages",
        "decoder_first_pipeline_num_layers",
        6,
    )


def test_uneven_stages_need_a_pipeline() -> None:
    (problem,) = check_layout(arch_of("9B"), LayoutSpec(8, first_stage_layers=10))
    assert (problem.id, problem.value, problem.legal) == ("uneven_stages_need_pp", 10, (None,))


def test_two_stages_given_by_their_layers() -> None:
    layout = LayoutSpec(2, pp=2, first_stage_layers=30, last_stage_layers=34)
    assert ids(arch_of("27B"), layout) == []
    assert ids(arch_of("27B"), replace(layout, last_stage_layers=33)) == ["layers_fill_the_stages"]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (
            LayoutSpec(8, 3),
            {"world_size_fits_dense_layout", "tp_divides_num_attention_heads", "tp_fits_kv_heads"},
        ),
        (
            LayoutSpec(8, 16, 3, 2, 3),
            {"world_size_fits_dense_layout", "pp_divides_layers", "ep_divides_experts"},
        ),
        (LayoutSpec(8, 2, sequence_parallel=False), {"moe_needs_sequence_parallel"}),
        (LayoutSpec(6, etp=3, ep=2), {"etp_divides_expert_width"}),
        (LayoutSpec(8, 8, cp=4), {"world_size_fits_dense_layout", "tp_cp_divide_gdn_heads"}),
    ],
)
def test_all_problems_at_once(layout: LayoutSpec, expected: set[str]) -> None:
    problems = check_layout(arch_of("35B-A3B"), layout)
    assert expected <= {problem.id for problem in problems}
    assert all(problem.legal for problem in problems)


@pytest.mark.parametrize(
    ("layout", "legal"),
    [
        (LayoutSpec(8, tp=2), (2, 4, 8)),
        (LayoutSpec(8, tp=4), (4, 2, 8)),
        (LayoutSpec(8, etp=2), (2, 4)),
        (LayoutSpec(8, tp=4, etp=2), (4, 2)),
        (LayoutSpec(8, tp=2, pp=4), (2,)),
    ],
)
def test_experts_that_nothing_sums_over_the_tp_ranks(layout: LayoutSpec, legal: tuple[int, ...]) -> None:
    """megatron-core reduces experts as dense weights while EP is 1."""
    arch = arch_of("35B-A3B")
    (problem,) = check_layout(arch, layout)
    assert (problem.id, problem.value, problem.legal) == ("ep1_needs_etp_equal_tp", 1, legal)
    assert ids(arch, replace(layout, ep=legal[0])) == []
    assert ids(arch, replace(layout, etp=layout.tp)) == []


def test_context_ranks_alone_are_no_tp_ranks() -> None:
    assert ids(arch_of("35B-A3B"), LayoutSpec(8, cp=2)) == []
    assert "ep1_needs_etp_equal_tp" not in ids(arch_of("9B"), LayoutSpec(8, tp=2))


def test_dense_models_have_no_expert_degrees() -> None:
    problems = check_layout(arch_of("9B"), LayoutSpec(8, ep=4, etp=2))
    assert [problem.key for problem in problems] == [
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
    ]


def test_old_megatron_core() -> None:
    """Before 0.16 TP must divide the 2 KV heads of the MoE models; before 0.18 gated delta nets have no
    CP."""
    arch = arch_of("35B-A3B")
    assert ids(arch, LayoutSpec(8, 4, ep=8), megatron_core=(0, 15)) == ["tp_fits_kv_heads"]
    assert ids(arch, LayoutSpec(8, 4, ep=8), megatron_core=(0, 16)) == []
    assert ids(arch, LayoutSpec(8, 2, cp=2, ep=8), megatron_core=(0, 17)) == ["cp_needs_megatron_core"]
    assert ids(arch, LayoutSpec(8, 2, cp=2, ep=8)) == []
    (problem,) = check_layout(arch, LayoutSpec(8, 8, ep=8), megatron_core=(0, 15))
    assert problem.legal == (2, 1)


def test_zero_is_refused_before_anything_divides_by_it() -> None:
    problems = check_layout(arch_of("9B"), LayoutSpec(8, 0, ep=-1))
    assert [problem.id for problem in problems] == ["positive_tp", "positive_ep"]


def test_tp_across_nodes_is_a_warning() -> None:
    (problem,) = check_layout(arch_of("9B"), LayoutSpec(16, 16))
    assert (problem.id, problem.severity, problem.legal) == ("tp_within_node", "warning", (8,))


@pytest.mark.parametrize("size", ["9B", "27B", "35B-A3B"])
def test_enumeration_is_complete_and_legal(size: str) -> None:
    arch, world = arch_of(size), 24
    expected = {
        layout
        for tp, pp, cp, ep in product(range(1, 9), range(1, world + 1), range(1, 17), range(1, world + 1))
        if world % (tp * pp * cp) == 0 and not check_layout(arch, layout := LayoutSpec(world, tp, pp, cp, ep))
    }
    found = list(enumerate_layouts(arch, world))
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize(
    ("size", "legal"),
    [("9B", [1, 2, 4, 8, 16]), ("27B", [1, 2, 4, 8]), ("35B-A3B", [1, 2, 4, 8, 16]), ("0.8B", [1, 2, 4, 8])],
)
def test_vllm_tensor_parallel_degrees(size: str, legal: list[int]) -> None:
    arch = arch_of(size)
    assert [tp for tp in range(1, 33) if not check_vllm_tp(arch, tp)] == legal
    (problem,) = check_vllm_tp(arch, 6)
    assert set(problem.legal) <= set(legal)


# --- auto ---


def auto(size: str, gpus: int, **changes: object) -> tuple[int, int, int, int]:
    spec = replace(TrainerSpec(8192, recompute="full"), **changes)  # type: ignore[arg-type]
    choice = choose_layout(arch_of(size), gpus, A800, BatchSpec(8 * gpus), spec, 3000)
    layout = choice.best.layout
    return layout.tp, layout.pp, layout.cp, layout.ep


@pytest.mark.parametrize(
    ("size", "gpus", "layout"),
    [
        ("9B", 8, (2, 1, 1, 1)),
        ("27B", 16, (4, 2, 1, 1)),
        ("122B-A10B", 48, (2, 6, 1, 8)),  # the layout of Megatron-Bridge for 48 GPUs
        ("122B-A10B", 64, (2, 4, 1, 8)),
    ],
)
def test_auto_layout_is_what_people_use(size: str, gpus: int, layout: tuple[int, int, int, int]) -> None:
    assert auto(size, gpus) == layout


def test_auto_prefers_no_parallelism_where_it_fits() -> None:
    assert auto("0.8B", 8) == (1, 1, 1, 1)


def test_auto_splits_no_small_model_over_two_gpus() -> None:
    """The SFT of benchmarks/gpu: 0.52 s per step on one GPU, 0.70 s with tensor parallel 2."""
    spec = TrainerSpec(32 * 128, recompute="none", reference_model=False)
    choice = choose_layout(arch_of("0.8B"), 2, GPUS["H200"], BatchSpec(64, 32, 1), spec, 64)
    assert choice.best.layout.model_size == 1
    (split,) = (c for c in choice.ranked if c.layout.tp == 2)
    assert split.step_seconds > choice.best.step_seconds


def test_auto_takes_a_split_for_a_reason_only() -> None:
    """TP 4 without a pipeline is 3 % faster here than TP 1 with two stages."""
    spec = TrainerSpec(8192, recompute="full")
    choice = choose_layout(arch_of("35B-A3B"), 16, A800, BatchSpec(128, num_generations=1), spec, 4096)
    fastest = min(c.step_seconds for c in choice.ranked if c.fits)
    assert fastest < choice.best.step_seconds < 1.12 * fastest
    assert choice.ranked[0] == choice.best
    assert "the least split within 10% of the fastest (TP" in choice.reason


def test_auto_ranks_and_explains() -> None:
    batch = BatchSpec(64)
    choice = choose_layout(arch_of("9B"), 8, A800, batch, TrainerSpec(8192, recompute="full"), 3000)
    assert choice.best == choice.ranked[0]
    fitting = [candidate for candidate in choice.ranked if candidate.fits]
    assert choice.ranked[: len(fitting)] == tuple(fitting)
    assert [candidate.step_seconds for candidate in fitting] == sorted(c.step_seconds for c in fitting)
    assert all(candidate.peak <= MEMORY_SHARE * A800.memory for candidate in fitting)
    assert all(candidate.peak > MEMORY_SHARE * A800.memory for candidate in choice.ranked[len(fitting) :])
    assert all(not errors_of(check_batch(batch, candidate.layout)) for candidate in choice.ranked)
    assert f"fastest of {len(fitting)} layouts" in choice.reason


def test_auto_keeps_to_legal_batches() -> None:
    """4 completions per step, 2 of a prompt: no more than 2 data-parallel groups."""
    choice = choose_layout(arch_of("0.8B"), 8, A800, BatchSpec(8, 1, 4), TrainerSpec(2048), 1000)
    assert {candidate.layout.dp_size for candidate in choice.ranked} <= {1, 2}


def test_auto_says_what_helps_when_nothing_fits() -> None:
    """Full GRPO of 35B-A3B on one node: 100 GiB per GPU with EP 8, reported as out of memory in
    ms-swift#8295."""
    with pytest.raises(PlanError, match="optimizer_cpu_offload, LoRA, more nodes") as error:
        auto("35B-A3B", 8)
    assert error.value.problems[0].id == "auto_layout_fits"
    assert auto("35B-A3B", 8, optimizer_offload=1.0)[3] == 8
    assert auto("35B-A3B", 8, tuner="lora")[3] > 1


def test_auto_says_when_no_batch_is_legal() -> None:
    with pytest.raises(PlanError, match="global_batch_size 7"):
        choose_layout(arch_of("9B"), 8, A800, BatchSpec(7), TrainerSpec(2048), 1000)


def test_auto_leaves_room_for_a_colocated_engine() -> None:
    arch, batch, spec = arch_of("9B"), BatchSpec(64), TrainerSpec(8192, recompute="full")
    engine = VllmSpec(tp=1, gpu_memory_utilization=0.4, max_num_seqs=32)
    alone = choose_layout(arch, 8, A800, batch, spec, 3000)
    shared = choose_layout(arch, 8, A800, batch, spec, 3000, colocate=(engine, ColocateSpec(sleep_level=1)))
    assert sum(c.fits for c in shared.ranked) < sum(c.fits for c in alone.ranked)
    with pytest.raises(PlanError):
        choose_layout(
            arch,
            8,
            A800,
            batch,
            spec,
            3000,
            colocate=(replace(engine, gpu_memory_utilization=0.9), ColocateSpec()),
        )
