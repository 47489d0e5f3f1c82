import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from grpoflow.models.architecture import Architecture
from grpoflow.models.counts import count_parameters, flops_per_token
from grpoflow.plan.batch import BatchSpec, SwiftBatchSpec, resolve_batch, resolve_swift_batch
from grpoflow.plan.hardware import GPUS, gpu_named
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.memory import VllmSpec
from grpoflow.plan.storage import checkpoint_bytes, run_storage
from grpoflow.plan.throughput import (
    Assumptions,
    StepTime,
    Workload,
    communication_seconds,
    estimate_step,
    gpu_hours,
    gradient_seconds,
    micro_batch_seconds,
    rollout_seconds,
    touched_experts,
    zero3_seconds,
)

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
ONE_COLOCATE = Path(__file__).parents[2] / "benchmarks/gpu/results/cases/one-colocate.json"
A800 = GPUS["A800-SXM4-80GB"]
ASSUMED = Assumptions()
WORK = Workload(mean_prompt=500, mean_completion=1500, max_completion=4096)


def arch_of(size: str) -> Architecture:
    return Architecture.from_config(json.loads((CONFIGS / f"qwen3.5-{size}.json").read_text()))


def step(size: str = "9B", spg: int = 1, uses_reference: bool = True) -> StepTime:
    layout = LayoutSpec(8, 2)
    batch = resolve_batch(BatchSpec(128, steps_per_generation=spg), layout)
    return estimate_step(
        arch_of(size), layout, batch, A800, VllmSpec(2), 4, WORK, uses_reference=uses_reference
    )


def seconds(result: StepTime, name: str) -> float:
    return sum(phase.seconds for phase in result.phases if phase.name == name)


def test_phases_of_a_step_and_their_assumptions() -> None:
    result = step()
    assert [phase.name for phase in result.phases] == [
        "rollout",
        "log-probabilities",
        "update",
        "weight sync",
    ]
    assert all(phase.seconds > 0 and phase.assumption for phase in result.phases)
    assert result.step_seconds == result.cycle_seconds


def test_log_probabilities_are_computed_for_whom_they_are_needed() -> None:
    """One pass for the old policy, always, and one for the reference if beta > 0."""
    policy = seconds(step(uses_reference=False), "log-probabilities")
    assert seconds(step(), "log-probabilities") == pytest.approx(2 * policy) != 0
    # two steps' worth of completions, two passes each
    assert seconds(step(spg=2), "log-probabilities") == pytest.approx(4 * policy)


def test_an_engine_in_the_trainer_syncs_fast_and_decodes_slowly() -> None:
    """Measured with the 0.8B shape on an H200 (benchmarks/gpu/results/cases/one-colocate.json)."""
    server, colocate = (
        estimate_step(
            arch_of("0.8B"),
            LayoutSpec(1),
            resolve_batch(BatchSpec(128, micro_batch_size=4), LayoutSpec(1)),
            gpu_named("H200"),
            VllmSpec(1, max_num_seqs=128),
            1,
            Workload(512, 512, 512),
            servers=servers,
        )
        for servers in (1, 0)
    )
    split = json.loads(ONE_COLOCATE.read_text())["seconds_per_step"]
    assert seconds(colocate, "rollout") == pytest.approx(split["rollout"], rel=0.1)
    assert seconds(colocate, "update") == pytest.approx(split["update"], rel=0.1)
    assert seconds(colocate, "weight sync") == pytest.approx(split["sync"], rel=0.2)
    # kernels without a backward pass are launched by Python alone, which the estimate does not know
    assert 0.5 * split["logps"] < seconds(colocate, "log-probabilities") < split["logps"]
    assert seconds(server, "rollout") < seconds(colocate, "rollout")
    assert seconds(server, "weight sync") > 5
    assert ["at least 23 ms of Python" in result.phases[0].assumption for result in (server, colocate)] == [
        False,
        True,
    ]


def test_one_gpu_update_is_flops_over_rate() -> None:
    arch = arch_of("9B")
    flops = 2000 * flops_per_token(arch).train(2000)
    expected = flops / (0.40 * 312e12)
    assert micro_batch_seconds(arch, LayoutSpec(1), A800, 2000, 2000, 8, ASSUMED) == pytest.approx(expected)
    assert gradient_seconds(arch, LayoutSpec(1), A800, 8, ASSUMED) == 0


def test_recomputation_costs_a_third_and_frozen_weights_save_one() -> None:
    arch, layout = arch_of("9B"), LayoutSpec(1)
    base = micro_batch_seconds(arch, layout, A800, 2000, 2000, 8, ASSUMED)
    full = micro_batch_seconds(arch, layout, A800, 2000, 2000, 8, ASSUMED, full_recompute=True)
    frozen = micro_batch_seconds(arch, layout, A800, 2000, 2000, 8, ASSUMED, frozen=True)
    assert (full / base, frozen / base) == pytest.approx((4 / 3, 2 / 3))


def test_output_layer_slows_the_last_stage() -> None:
    """16 stages of 4 layers: the output layer of the 27B costs as much as 3 layers, on one stage."""
    arch, exact = arch_of("27B"), replace(ASSUMED, pp_doubling=1.0)
    flops = flops_per_token(arch)
    even = micro_batch_seconds(arch, LayoutSpec(16, pp=16), A800, 2000, 2000, 8, exact)
    communication = communication_seconds(arch, LayoutSpec(16, pp=16), A800, 2000, 8, exact)
    per_stage = (flops.body + 2000 * flops.attention_core) / 16
    expected = 3 * 2000 * (per_stage + flops.logits) / (0.40 * 312e12)
    assert even - communication == pytest.approx(expected)
    uneven = LayoutSpec(8, pp=8, last_stage_layers=1)
    lighter = micro_batch_seconds(arch, uneven, A800, 2000, 2000, 8, exact)
    nine_layers = 3 * 2000 * (flops.body + 2000 * flops.attention_core) / 64 * 9 / (0.40 * 312e12)
    assert lighter - communication_seconds(arch, uneven, A800, 2000, 8, exact) == pytest.approx(nine_layers)


@pytest.mark.parametrize(
    ("inside", "across"),
    [
        (LayoutSpec(64, 8), LayoutSpec(64, 16)),
        (LayoutSpec(64, ep=8), LayoutSpec(64, ep=16)),
        (LayoutSpec(64, 2, cp=4), LayoutSpec(64, 2, cp=8)),
    ],
)
def test_groups_across_nodes_are_slower(inside: LayoutSpec, across: LayoutSpec) -> None:
    arch = arch_of("122B-A10B")
    within = communication_seconds(arch, inside, A800, 4096, 8, ASSUMED)
    beyond = communication_seconds(arch, across, A800, 4096, 8, ASSUMED)
    assert beyond > 2 * within > 0


def test_touched_experts_against_a_simulation() -> None:
    random.seed(0)
    trials = [len({expert for _ in range(20) for expert in random.sample(range(256), 8)}) for _ in range(200)]
    assert touched_experts(256, 8, 20) == pytest.approx(sum(trials) / len(trials), rel=0.01)
    assert touched_experts(256, 8, 1) == pytest.approx(8)


def rollout(size: str = "9B", engines: int = 4, completions: int = 128, **changes: int) -> float:
    spec = replace(VllmSpec(2), **changes)
    return rollout_seconds(arch_of(size), A800, spec, engines, completions, WORK, ASSUMED)


def test_decoding_alone_is_bound_by_reading_the_weights() -> None:
    """One sequence on one GPU: every step reads 18 GB of weights at 60 % of 2.04 TB/s, and waits the
    overhead."""
    work = Workload(1, 1000, 1000)
    spent = rollout_seconds(arch_of("9B"), A800, VllmSpec(1), 1, 1, work, ASSUMED)
    weights = 2 * (6.920e9 + 1.017e9)
    per_step = weights / (0.6 * 2.039e12) + 0.004
    assert spent == pytest.approx(1000 * per_step, rel=0.02)


def test_decoding_many_reads_every_cache_and_state_too() -> None:
    """64 sequences: 49 MiB of GDN state read and written, and 32 KiB of keys and values per token of context
    each."""
    work = Workload(1000, 1000, 1000)
    spent = rollout_seconds(arch_of("9B"), A800, VllmSpec(1), 1, 64, work, ASSUMED)
    prompt = rollout_seconds(
        arch_of("9B"), A800, VllmSpec(1), 1, 64, replace(work, mean_completion=1), ASSUMED
    )
    read = 2 * (6.920e9 + 1.017e9) + 64 * (2 * 49 * 2**20 + 1500 * 32 * 1024)
    assert spent - prompt == pytest.approx(1000 * (read / (0.6 * 2.039e12) + 0.004), rel=0.02)


def test_rollout_scaling() -> None:
    assert rollout(engines=8) < rollout(engines=4)
    # a batch four times as large is far cheaper than four batches: the weights are read once for all
    assert rollout(completions=512) < 2.5 * rollout(completions=128)
    # but not when the engine may run only 32 of them at once
    assert rollout(completions=512, max_num_seqs=32) > 3 * rollout(completions=128, max_num_seqs=32)
    assert rollout(size="27B") > rollout(size="9B") > rollout(size="2B")


def test_sequences_beyond_the_kv_cache_wait() -> None:
    """The 35B-A3B at 0.5 of two A800 holds 283 blocks, 10 for a mean sequence: 64 need 2.3 waves, each of
    which reads less."""

    def seconds_at(share: float) -> float:
        spec = VllmSpec(2, share, 64)
        return rollout_seconds(arch_of("35B-A3B"), A800, spec, 1, 64, Workload(2048, 2048, 4096), ASSUMED)

    assert 1.3 < seconds_at(0.5) / seconds_at(0.6) < 64 / 28.3
    assert seconds_at(0.6) == seconds_at(0.9)


def test_the_longest_completion_never_exceeds_the_limit() -> None:
    short = Workload(500, 1500, 1600)
    spec = VllmSpec(2)
    assert rollout_seconds(arch_of("9B"), A800, spec, 4, 128, short, ASSUMED) < rollout()


def test_more_steps_per_rollout_cost_less_per_step() -> None:
    assert step(spg=4).step_seconds < step(spg=1).step_seconds + seconds(step(), "log-probabilities")
    assert step(spg=4).updates == 4


def test_swift_batch_of_several_rollouts_per_step() -> None:
    batch = resolve_swift_batch(SwiftBatchSpec(8, 2, 8, steps_per_generation=4))
    result = estimate_step(arch_of("0.8B"), LayoutSpec(8), batch, A800, VllmSpec(1), 8, WORK)
    assert result.updates == 0.5
    assert result.step_seconds == 2 * result.cycle_seconds


def test_sync_grows_with_the_servers() -> None:
    layout = LayoutSpec(8, 2)
    batch = resolve_batch(BatchSpec(128), layout)
    one, three = (
        estimate_step(arch_of("9B"), layout, batch, A800, VllmSpec(2), 4, WORK, servers=servers)
        for servers in (1, 3)
    )
    per_server = (one.phases[-1].seconds - 5) * 1
    assert three.phases[-1].seconds - 5 == pytest.approx(3 * per_server)


def test_gpu_hours() -> None:
    result = step()
    assert gpu_hours(result, 100, 16) == pytest.approx(result.step_seconds * 100 * 16 / 3600)


# --- storage ---


@pytest.mark.parametrize(
    ("size", "gigabytes"), [("9B", 145), ("27B", 432), ("35B-A3B", 556), ("122B-A10B", 1956)]
)
def test_checkpoint_sizes(size: str, gigabytes: int) -> None:
    assert checkpoint_bytes(arch_of(size)) / 1e9 == pytest.approx(gigabytes, abs=0.5)


def test_checkpoint_without_optimizer_and_of_lora() -> None:
    arch = arch_of("9B")
    weights = 2 * 9_409_813_744
    assert checkpoint_bytes(arch, save_optimizer=False) == weights
    assert checkpoint_bytes(arch, adapter_parameters=1000) == weights + 14_000
    assert checkpoint_bytes(arch, trains_vision=True) == 8 * weights
    assert checkpoint_bytes(arch, trains_mtp=True) - checkpoint_bytes(arch) == 16 * 243290624


def test_storage_of_a_run() -> None:
    storage = run_storage(100, steps=100, save_steps=30, save_total_limit=2)
    assert (storage.per_checkpoint, storage.kept, storage.peak) == (100, 200, 300)
    assert run_storage(100, 100, 30, None).kept == 400
    assert run_storage(100, 100, 200, 2).peak == 100


# --- small models, ZeRO-3 ---


def test_a_small_layer_takes_as_long_as_its_launch() -> None:
    """24 layers in 3 passes, each of which takes 2.7 ms at least."""

    def one(size: str, tokens: float) -> float:
        return micro_batch_seconds(arch_of(size), LayoutSpec(1), A800, tokens, tokens, 8, ASSUMED)

    assert one("0.8B", 16) == pytest.approx(24 * 3 * 2.7e-3)
    assert one("0.8B", 16) == one("0.8B", 32)
    assert one("9B", 4096) == pytest.approx(one("9B", 2048) * 2, rel=0.1)


def test_zero3_moves_three_times_the_parameters() -> None:
    """arXiv 1910.02054, section 7.2.2; 8 ranks over NVLink at 70 % of 200 GB/s one way."""
    arch = arch_of("9B")
    counts = count_parameters(arch)
    expected = 3 * 2 * (counts.text + counts.visual) * 7 / 8 / 140e9
    assert zero3_seconds(arch, 8, A800, 8, ASSUMED) == pytest.approx(expected)
    assert zero3_seconds(arch, 8, A800, 8, ASSUMED, frozen=True) == pytest.approx(expected * 2 / 3)
    assert zero3_seconds(arch, 1, A800, 8, ASSUMED) == 0
    assert zero3_seconds(arch, 16, A800, 8, ASSUMED) > 5 * expected


def test_zero3_gathers_for_every_micro_batch() -> None:
    layout, arch = LayoutSpec(8), arch_of("9B")
    updates = []
    for size in (1, 4):
        batch = resolve_swift_batch(SwiftBatchSpec(8, size, 16 // size, num_generations=8))
        plain, zero3 = (
            seconds(estimate_step(arch, layout, batch, A800, VllmSpec(2), 4, WORK, zero3=on), "update")
            for on in (False, True)
        )
        updates.append(zero3 - plain + gradient_seconds(arch, layout, A800, 8, ASSUMED))
    assert updates[0] == pytest.approx(4 * updates[1])
