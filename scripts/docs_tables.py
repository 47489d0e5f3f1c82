"""The tables of docs/ that follow from the plan's arithmetic and from facts/version_gates.json.

Paths of checkpoints are relative: the functions run in a directory with checkpoints/ (see scripts/make-docs).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpoflow.config import load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.facts.arguments import FACTS
from grpoflow.facts.gates import GateStatus, package_bounds, status
from grpoflow.plan.batch import BatchSpec, SwiftBatchSpec, resolve_batch, resolve_swift_batch
from grpoflow.plan.hardware import GIB, GPUS
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.memory import RankMemory
from grpoflow.plan.throughput import (
    DEFAULT_ASSUMPTIONS,
    gradient_seconds,
    micro_batch_seconds,
    pipeline_passes,
)
from grpoflow.preflight.estimate import sft_ranks, step_time, trainer_ranks
from grpoflow.preflight.subject import Subject

ROOT = Path(__file__).resolve().parents[1]
BASE = ("config/clusters/a800-8x.yaml", "config/recipes/base.yaml")
A800 = GPUS["A800-SXM4-80GB"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


# --- what works in which release ---

RELEASES = ("4.0.4", "4.1.3", "4.2.3", "4.3.2", "4.4.2", "4.5.3", "4.6.0")
WORDS = {
    "supported": "yes",
    "ignored": "ignored",
    "refused": "refused",
    "broken": "broken",
    "absent": "no",
}


def _megatron_gates() -> Iterator[tuple[str, list[GateStatus]]]:
    """(argument or feature, its states in RELEASES) of `megatron rlhf`."""
    for gate in json.loads((FACTS / "version_gates.json").read_text(encoding="utf-8"))["gates"]:
        if "megatron rlhf" in gate["commands"]:
            arguments = " with ".join(f"`{argument}`" for argument in gate["arguments"])
            if len(gate["arguments"]) == 1 and gate["harmless"]:
                arguments += f" (not {json.dumps(gate['harmless'][0])})"
            states = [status(gate["feature"], release) for release in RELEASES]
            yield arguments or gate["feature"].replace("_", " "), states


def _why(state: GateStatus) -> str:
    return state.why.removeprefix("ValueError: ")


def no_effect() -> str:
    """What `megatron rlhf` of the newest release ignores, refuses or does wrongly."""
    rows = [
        (name, WORDS[states[-1].status], _why(states[-1]), states[-1].evidence)
        for name, states in _megatron_gates()
        if states[-1].status != "supported"
    ]
    return table(("parameter or feature", f"in {RELEASES[-1]}", "why", "evidence"), rows)


def by_version() -> str:
    """What changed for `megatron rlhf` between the releases."""
    rows = [
        (name, *(WORDS[state.status] for state in states), _why(states[0]))
        for name, states in _megatron_gates()
        if len({state.status for state in states}) > 1
    ]
    return table(("parameter or feature", *RELEASES, "before"), rows)


PACKAGES = (
    "python",
    "torch",
    "transformers",
    "megatron-core",
    "mcore-bridge",
    "transformer-engine",
    "flash-attn",
    "flash-linear-attention",
    "vllm",
    "trl",
    "peft",
    "msgspec",
)


def packages() -> str:
    """What has to be in the training environment, and one set that fits together on A800."""
    bounds = {bound.package: bound for bound in package_bounds(RELEASES[-1])}
    rows = [("ms-swift", f"=={RELEASES[-1]}", RELEASES[-1])]
    for name in PACKAGES:
        allowed = ", ".join(filter(None, (bounds[name].requires, bounds[name].qwen3_5)))
        rows.append((name, allowed, bounds[name].recommended))
    return table(("package", "allowed", "A800"), rows)


# --- batch ---

BATCH = (
    ("data-parallel groups", "dp_size", "swift: ranks; Megatron: ranks / (TP x PP x CP)"),
    ("completions per pass and group", "micro_batch_size", "given"),
    ("passes per optimizer step", "gradient_accumulation", "batch / (micro batch x groups)"),
    ("completions per optimizer step", "global_batch_size", "the batch"),
    ("prompts per optimizer step", "train_prompts", "batch / num_generations"),
    ("`steps_per_generation`", "steps_per_generation", "swift: passes; Megatron: optimizer steps"),
    (
        "completions per rollout",
        "generation_batch_size",
        "swift: micro batch x ranks x steps_per_generation; Megatron: batch x steps_per_generation",
    ),
    ("prompts per rollout", "rollout_prompts", "completions per rollout / num_generations"),
    ("prompts per rollout and group", "rollout_prompts_per_dp", "Megatron: multiple of the micro batch"),
    ("completions per rollout and rank", "completions_per_rank", "Megatron: a whole number"),
    ("optimizer steps per rollout", "updates_per_rollout", "above 1: one more forward pass per rollout"),
)


def worked_batch() -> str:
    """The batch of ms-swift#8289 in both backends."""
    swift = SwiftBatchSpec(6, per_device_train_batch_size=4, gradient_accumulation_steps=8)
    megatron = BatchSpec(192, micro_batch_size=4, steps_per_generation=1)
    batches = (
        resolve_swift_batch(swift),
        resolve_batch(megatron, LayoutSpec(6)),
        resolve_batch(megatron, LayoutSpec(6, tp=2)),
    )
    rows = [
        (what, *(f"{getattr(batch, name):g}" for batch in batches), formula) for what, name, formula in BATCH
    ]
    return table(("", "swift, 6 GPUs", "Megatron, TP 1", "Megatron, TP 2", "formula"), rows)


# --- what a change of a recipe costs ---

MEMORY = ("GPU GiB", "host GiB per rank")
PHASES = ("rollout", "log-probabilities", "update", "weight sync")
KNOBS: tuple[dict[str, Any], ...] = (
    {},
    {"trainer": {"recompute": "selective"}},
    {"trainer": {"micro_batch_size": 2}},
    {"trainer": {"micro_batch_size": 4}},
    {"trainer": {"optimizer_cpu_offload": True}},
    {"trainer": {"freeze_vit": False, "freeze_aligner": False}},
    {"trainer": {"parallel": {"tensor": 1}}},
    {"trainer": {"tuner": "lora"}},
    {"trainer": {"beta": 0.0}},
    {"trainer": {"steps_per_generation": 1}},
    {"trainer": {"num_generations": 16}},
    {"trainer": {"max_completion_length": 2048}},
    {"trainer": {"max_completion_length": 8192}},
    {"rollout": {"tensor_parallel_size": 2}},
    {"rollout": {"gpus": 4}, "trainer": {"global_batch_size": 128}},
)


def subject_of(recipe: str, overlay: dict[str, Any]) -> Subject:
    """A recipe for 8 x A800 nodes with an overlay."""
    raw: dict[str, Any] = {}
    for path in (*BASE, f"config/recipes/{recipe}.yaml"):
        raw = merge(raw, read_yaml(ROOT / path))
    return Subject("main", load_experiments(merge(raw, overlay))["main"], 1440)


def memory(ranks: Sequence[RankMemory]) -> tuple[str, str]:
    """GPU and host memory of the fullest rank; bold where it exceeds an A800."""
    peak = max(rank.peak for rank in ranks)
    host = max(rank.host for rank in ranks)
    gpu = f"{peak / GIB:.1f}"
    return (f"**{gpu}**" if peak > A800.memory else gpu), (f"{host / GIB:.0f}" if host else "")


def _leaves(overlay: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in overlay.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"`{prefix}{name}: {json.dumps(value).strip(chr(34))}`"


def knobs() -> str:
    """Memory and time of 9b-full-split-1n, and of each change to it."""
    rows = []
    for overlay in KNOBS:
        subject = subject_of("9b-full-split-1n", overlay)
        time = step_time(subject)
        assert time is not None, overlay
        seconds = {phase.name: phase.seconds for phase in time.phases}
        rate = subject.config.trainer.global_batch_size / time.step_seconds
        rows.append(
            (
                ", ".join(_leaves(overlay)) or "the recipe as it is",
                *memory(trainer_ranks(subject)),
                *(f"{seconds.get(phase, 0):.0f}" for phase in PHASES),
                f"{rate:.2f}",
            )
        )
    header = ("change", *MEMORY, *(f"{phase} s" for phase in PHASES), "completions per s")
    return table(header, rows)


# --- ms-swift#8289 ---

ZERO: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ZeRO-3, micro batch 4: as in the issue", {}),
    ("ZeRO-2, micro batch 4", {"deepspeed": "zero2"}),
    ("ZeRO-2, micro batch 1", {"deepspeed": "zero2", "micro_batch_size": 1}),
    ("ZeRO-1, micro batch 1", {"deepspeed": "zero1", "micro_batch_size": 1}),
)
MEGATRON: tuple[tuple[str, dict[str, Any]], ...] = (
    ("TP 1, micro batch 1", {"parallel": {"tensor": 1}}),
    ("TP 2, micro batch 4", {"micro_batch_size": 4}),
    ("TP 2, micro batch 1", {}),
    ("TP 2, micro batch 1, vision tower frozen", {"freeze_vit": True, "freeze_aligner": True}),
    ("TP 2, micro batch 1, optimizer in host memory", {"optimizer_cpu_offload": True}),
)
SAME_WORK: dict[str, Any] = {
    "data": {"max_length": 8096},
    "trainer": {
        "freeze_vit": False,
        "freeze_aligner": False,
        "global_batch_size": 192,
        "steps_per_generation": 1,
    },
}


def nine_b() -> str:
    """Memory of the trainer of ms-swift#8289 in several ways to split it over six GPUs."""
    rows = [
        (what, *memory(trainer_ranks(subject_of("9b-full-split-1n-swift", {"trainer": trainer}))))
        for what, trainer in ZERO
    ]
    for what, trainer in MEGATRON:
        subject = subject_of("9b-full-split-1n", merge(SAME_WORK, {"trainer": trainer}))
        rows.append((f"Megatron, {what}", *memory(trainer_ranks(subject))))
    return table(("trainer on 6 GPUs", *MEMORY), rows)


# --- 35B-A3B ---

SFT_35B = "35b-a3b-sft-lora-colocate-1n"
SFT_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"parallel": {"tensor": 4, "expert": 8}, "optimizer_cpu_offload": False},
    {"parallel": {"tensor": 1, "expert": 4}},
    {"parallel": {"tensor": 1, "expert": 8}},
    {"parallel": {"tensor": 2, "expert": 8}},
    {"parallel": {"tensor": 4, "expert": 8}},
    {"nodes": 2, "parallel": {"tensor": 1, "pipeline": 2, "expert": 8}, "optimizer_cpu_offload": False},
    {"nodes": 2, "parallel": {"tensor": 2, "expert": 8}, "optimizer_cpu_offload": False},
)
MFU = (DEFAULT_ASSUMPTIONS.moe_mfu, 0.054)
"""The plan's assumption, and what ms-swift's own measurement on A800 comes to (docs/35b-a3b.md)."""


def sft_35b() -> str:
    """Memory per rank of full-parameter SFT of 35B-A3B with its vision tower, and projected speed."""
    rows = []
    for overlay in SFT_LAYOUTS:
        subject = subject_of(SFT_35B, {"sft": overlay})
        sft, layout = subject.config.sft, subject.sft_layout.spec
        assert sft is not None and layout is not None
        rows.append(
            (
                _sizes(layout),
                str(layout.world_size),
                "host" if sft.optimizer_cpu_offload else "GPU",
                *memory(sft_ranks(subject)),
                *(f"{_sft_tokens_per_second(subject, mfu):,.0f}" for mfu in MFU),
            )
        )
    speeds = (f"tokens/s at {mfu:.1%}" for mfu in MFU)
    return table(("layout", "GPUs", "optimizer in", *MEMORY, *speeds), rows)


def _sizes(layout: LayoutSpec) -> str:
    return f"TP {layout.tp} PP {layout.pp} EP {layout.ep}, DP {layout.dp_size}"


def _sft_tokens_per_second(subject: Subject, mfu: float) -> float:
    """Tokens per second over all GPUs, for rows packed to max_length, at a share of the BF16 peak."""
    arch, sft, layout = subject.architecture, subject.config.sft, subject.sft_layout.spec
    assert arch is not None and sft is not None and layout is not None
    assumptions = replace(DEFAULT_ASSUMPTIONS, moe_mfu=mfu)
    tokens = sft.micro_batch_size * sft.max_length
    one = micro_batch_seconds(
        arch, layout, A800, tokens, sft.max_length, 8, assumptions, full_recompute=sft.recompute == "full"
    )
    passes = pipeline_passes(layout.pp, sft.global_batch_size // (sft.micro_batch_size * layout.dp_size))
    seconds = passes * one + gradient_seconds(arch, layout, A800, 8, assumptions)
    return sft.global_batch_size * sft.max_length / seconds


GRPO_35B: tuple[tuple[str, dict[str, Any]], ...] = (
    ("35b-a3b-lora-split-1n", {}),
    ("35b-a3b-lora-colocate-1n", {}),
    ("35b-a3b-full-colocate-2n", {"trainer": {"nodes": 1}}),
    ("35b-a3b-full-colocate-2n", {}),
    ("35b-a3b-full-server-2n", {}),
    ("35b-a3b-full-server-3n", {}),
)


def grpo_35b() -> str:
    """Memory per rank and projected speed of the GRPO recipes of 35B-A3B."""
    rows = []
    for recipe, overlay in GRPO_35B:
        subject = subject_of(recipe, overlay)
        config, layout, time = subject.config, subject.layout.spec, step_time(subject)
        assert layout is not None and time is not None
        servers = config.rollout.nodes if config.rollout.mode == "server" else 0
        rows.append(
            (
                ", ".join((f"`{recipe}`", *_leaves(overlay))),
                str(config.trainer.nodes + servers),
                _sizes(layout),
                *memory(trainer_ranks(subject)),
                f"{time.step_seconds:.0f}",
            )
        )
    return table(("recipe", "nodes", "layout of the trainer", *MEMORY, "s per optimizer step"), rows)


# --- the embedded default ---


def seeds() -> str:
    """benchmarks/default/seeds.json."""
    rows = []
    for run in json.loads((ROOT / "benchmarks/default/seeds.json").read_text())["runs"]:
        training, held_out = run["training_reward"], run["held_out"]
        difference = held_out["difference"]
        rows.append(
            (
                str(run["seed"]),
                f"{training['first_tenth']:.2f} -> {training['last_tenth']:.2f}",
                f"{held_out['before']:.2f} -> {held_out['after']:.2f}",
                f"{difference['mean']:+.2f} [{difference['low']:+.2f}, {difference['high']:+.2f}]",
            )
        )
    header = ("seed", "reward, first to last tenth of the steps", "held-out prompts, SFT to GRPO")
    return table((*header, "difference"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "packages": packages,
    "no-effect": no_effect,
    "by-version": by_version,
    "worked-batch": worked_batch,
    "knobs": knobs,
    "nine-b": nine_b,
    "sft-35b": sft_35b,
    "grpo-35b": grpo_35b,
    "seeds": seeds,
}
