"""Memory, time and cost of an experiment: the plan's arithmetic applied to a subject."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from grpoflow.config.tuner import TunerConfig
from grpoflow.plan.batch import Batch, resolve_batch, resolve_swift_batch, swift_train_steps, train_iters
from grpoflow.plan.inputs import (
    batch_spec,
    colocate_spec,
    placement_spec,
    sft_spec,
    swift_batch_spec,
    trainer_spec,
    vllm_spec,
    workload_of,
)
from grpoflow.plan.layout import LayoutSpec, check_layout, check_vllm_tp
from grpoflow.plan.memory import (
    BF16,
    RankMemory,
    TrainerSpec,
    VllmMemory,
    colocated_memory,
    swift_trainer_memory,
    trainer_memory,
    vllm_memory,
)
from grpoflow.plan.problem import PlanError, errors_of
from grpoflow.plan.storage import Storage, checkpoint_bytes, run_storage
from grpoflow.plan.throughput import (
    DEFAULT_ASSUMPTIONS,
    StepTime,
    estimate_step,
    gradient_seconds,
    micro_batch_seconds,
    pipeline_passes,
    zero3_seconds,
)
from grpoflow.readers import DataError, records

from .subject import Subject

ZERO_STAGE: dict[str, Literal[0, 1, 2, 3]] = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}


def batch_of(subject: Subject) -> Batch | None:
    """The resolved batch of GRPO, or None where it or its layout is illegal."""
    config = subject.config
    try:
        if config.trainer.backend == "megatron":
            spec = subject.layout.spec
            return None if spec is None else resolve_batch(batch_spec(config), spec)
        swift = swift_batch_spec(config, subject.world_size)
        return None if swift is None else resolve_swift_batch(swift)
    except (PlanError, ZeroDivisionError):
        return None


def data_layout(subject: Subject) -> LayoutSpec | None:
    """The layout for memory and time: that of Megatron where it is legal, else plain data parallelism."""
    arch, config = subject.architecture, subject.config
    if config.trainer.backend == "swift":
        return LayoutSpec(subject.world_size)
    return _legal(subject, subject.layout.spec) if arch is not None else None


def _legal(subject: Subject, spec: LayoutSpec | None) -> LayoutSpec | None:
    arch = subject.architecture
    if arch is None or spec is None:
        return None
    gpus = subject.config.cluster.gpus_per_node
    wrong = errors_of(check_layout(arch, spec, gpus_per_node=gpus, megatron_core=subject.megatron_core))
    return None if wrong else spec


# --- memory ---


def trainer_ranks(subject: Subject) -> list[RankMemory]:
    """One rank of every pipeline stage of the GRPO trainer, with vLLM in it in colocate mode; empty where
    something is not known or not legal."""
    arch, layout, batch = subject.architecture, data_layout(subject), batch_of(subject)
    if arch is None or layout is None:
        return []
    config = subject.config
    spec = replace(trainer_spec(config), micro_batches=batch.gradient_accumulation if batch else layout.pp)
    ranks = _ranks(subject, config.trainer, layout, spec)
    engine = rollout_memory(subject)
    if config.rollout.mode == "colocate" and engine is not None:
        return [colocated_memory(rank, engine, colocate_spec(config)) for rank in ranks]
    return ranks


def sft_ranks(subject: Subject) -> list[RankMemory]:
    """The same of the SFT trainer; empty without one."""
    arch, sft = subject.architecture, subject.config.sft
    if arch is None or sft is None:
        return []
    swift = sft.backend == "swift"
    layout = LayoutSpec(subject.sft_world_size) if swift else _legal(subject, subject.sft_layout.spec)
    if layout is None:
        return []
    micro_batches = max(1, sft.global_batch_size // (sft.micro_batch_size * layout.dp_size))
    return _ranks(subject, sft, layout, replace(sft_spec(subject.config), micro_batches=micro_batches))


def _ranks(subject: Subject, tuner: TunerConfig, layout: LayoutSpec, spec: TrainerSpec) -> list[RankMemory]:
    arch = subject.architecture
    if arch is None:
        return []
    if tuner.backend == "swift":
        return [swift_trainer_memory(arch, layout.world_size, spec, ZERO_STAGE[tuner.deepspeed])]
    return trainer_memory(arch, layout, spec)


def rollout_memory(subject: Subject) -> VllmMemory | None:
    """One rank of a vLLM engine, or None where model or GPU is not known, or its size is not legal."""
    arch, spec = subject.architecture, vllm_spec(subject.config)
    if arch is None or subject.gpu is None or check_vllm_tp(arch, spec.tp):
        return None
    return vllm_memory(arch, spec, subject.gpu)


# --- time ---


def engines(subject: Subject) -> int:
    """vLLM engines that generate at once."""
    spec = placement_spec(subject.config)
    if spec.mode == "colocate":
        return max(1, spec.trainer_world_size // spec.vllm_tp)
    servers = max(1, spec.rollout_nodes)
    return servers * max(1, len(spec.rollout_device_ids) // spec.vllm_tp)


def step_time(subject: Subject) -> StepTime | None:
    """Time of a rollout cycle, or None where something is not known or not legal."""
    arch, gpu, layout, batch = subject.architecture, subject.gpu, data_layout(subject), batch_of(subject)
    if arch is None or gpu is None or layout is None or batch is None:
        return None
    trainer, rollout = subject.config.trainer, subject.config.rollout
    return estimate_step(
        arch,
        layout,
        batch,
        gpu,
        vllm_spec(subject.config),
        engines(subject),
        workload_of(subject.config),
        gpus_per_node=subject.config.cluster.gpus_per_node,
        full_recompute=trainer.recompute == "full",
        frozen=trainer.tuner == "lora",
        uses_reference=trainer.beta > 0,
        servers=0 if rollout.mode == "colocate" else max(1, rollout.nodes),
        zero3=_zero3(trainer),
    )


def _zero3(tuner: TunerConfig) -> bool:
    return tuner.backend == "swift" and tuner.deepspeed == "zero3"


def run_steps(subject: Subject) -> int | None:
    """Optimizer steps of the GRPO run, or None where they follow from data that are not there."""
    trainer = subject.config.trainer
    if trainer.train_steps is not None:
        return trainer.train_steps
    rows, batch = count_rows(subject.config.data.train), batch_of(subject)
    if rows is None or batch is None or trainer.epochs is None:
        return None
    if trainer.backend == "megatron":
        return train_iters(batch, rows, trainer.epochs)
    return swift_train_steps(batch, rows, trainer.epochs) if rows >= batch.rollout_prompts else 0


@dataclass(frozen=True)
class SftTime:
    """Time of the SFT stage: seconds per step, steps (None if the data are not there), GPUs."""

    step_seconds: float
    steps: int | None
    gpus: int


def sft_time(subject: Subject) -> SftTime | None:
    """Estimate the SFT stage, or None without one or where something is not known."""
    arch, gpu, sft = subject.architecture, subject.gpu, subject.config.sft
    if arch is None or gpu is None or sft is None:
        return None
    swift = sft.backend == "swift"
    layout = LayoutSpec(subject.sft_world_size) if swift else _legal(subject, subject.sft_layout.spec)
    if layout is None:
        return None
    length = 0.5 * sft.max_length
    per_node = subject.config.cluster.gpus_per_node
    one = micro_batch_seconds(
        arch,
        layout,
        gpu,
        sft.micro_batch_size * length,
        length,
        per_node,
        DEFAULT_ASSUMPTIONS,
        full_recompute=sft.recompute == "full",
        frozen=sft.tuner == "lora",
    )
    passes = max(1, sft.global_batch_size // (sft.micro_batch_size * layout.dp_size))
    if _zero3(sft):
        gathers = zero3_seconds(
            arch, layout.world_size, gpu, per_node, DEFAULT_ASSUMPTIONS, frozen=sft.tuner == "lora"
        )
        seconds = passes * (one + gathers)
    else:
        seconds = pipeline_passes(layout.pp, passes) * one
        seconds += gradient_seconds(arch, layout, gpu, per_node, DEFAULT_ASSUMPTIONS)
    steps, rows = sft.train_steps, count_rows(sft.dataset)
    if steps is None and rows is not None and sft.epochs is not None:
        steps = rows * sft.epochs // sft.global_batch_size
    return SftTime(seconds, steps, layout.world_size)


@lru_cache(maxsize=16)
def count_rows(path: str) -> int | None:
    """Rows of a data set, or None where it is not there, or only the training environment can read it."""
    source = Path(path)
    try:
        if source.suffix.lower() == ".jsonl":
            with source.open("rb") as content:
                return sum(1 for line in content if line.strip())
        if source.suffix.lower() in (".json", ".csv"):
            return sum(1 for _ in records(source))
    except (OSError, DataError):
        pass
    return None


# --- disk ---


def disk(subject: Subject) -> Storage | None:
    """Checkpoints of the run, or None where model or steps are not known."""
    arch, steps, trainer = subject.architecture, run_steps(subject), subject.config.trainer
    if arch is None or not steps:
        return None
    spec = trainer_spec(subject.config)
    adapter = None
    if trainer.tuner == "lora":
        (whole,) = trainer_memory(arch, LayoutSpec(1), spec)
        adapter = sum(item.bytes // BF16 for item in whole.items if item.name == "adapter")
    size = checkpoint_bytes(
        arch,
        save_optimizer=trainer.save_optimizer,
        trains_mtp=spec.trains_mtp,
        trains_vision=not trainer.freeze_vit,
        adapter_parameters=adapter,
    )
    return run_storage(size, steps, trainer.save_steps, trainer.save_total_limit)
