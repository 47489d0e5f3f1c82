"""The `auto` layout of the trainer: of the legal ones that fit in memory the fastest, or one that splits less
where the estimate sees no difference worth a split; with the alternatives."""

from dataclasses import dataclass, replace

from grpoflow.models.architecture import Architecture
from grpoflow.plan.batch import BatchSpec, check_batch, resolve_batch
from grpoflow.plan.hardware import GIB, Gpu
from grpoflow.plan.layout import LayoutSpec, enumerate_layouts
from grpoflow.plan.memory import (
    ColocateSpec,
    RankMemory,
    TrainerSpec,
    VllmSpec,
    colocated_memory,
    trainer_memory,
    vllm_memory,
)
from grpoflow.plan.problem import PlanError, Problem, errors_of
from grpoflow.plan.throughput import (
    DEFAULT_ASSUMPTIONS,
    Assumptions,
    gradient_seconds,
    micro_batch_seconds,
    pipeline_passes,
)

MEMORY_SHARE = 0.92
"""Share of the GPU that the estimate may fill: it is a lower bound (see memory.NOT_MODELLED)."""

WORTH_A_SPLIT = 0.10
"""Share of the time that a layout must save to be taken before one that splits the model over fewer ranks:
the estimate is not finer than that, and narrow matrices are other kernels, each to be tuned again."""


@dataclass(frozen=True)
class Candidate:
    """A legal layout: the peak of its fullest rank in bytes, and the estimated seconds of one optimizer
    step."""

    layout: LayoutSpec
    peak: int
    role: str
    step_seconds: float
    fits: bool

    def __str__(self) -> str:
        return f"{self.layout}: {self.peak / GIB:.1f} GiB ({self.role}), {self.step_seconds:.1f} s per step"


@dataclass(frozen=True)
class Choice:
    """The chosen layout, why, and all legal layouts: the chosen one, the others that fit by time, then the
    rest by memory."""

    best: Candidate
    reason: str
    ranked: tuple[Candidate, ...]


def choose_layout(
    arch: Architecture,
    world_size: int,
    gpu: Gpu,
    batch: BatchSpec,
    trainer: TrainerSpec,
    mean_length: float,
    *,
    gpus_per_node: int = 8,
    megatron_core: tuple[int, int] = (0, 18),
    colocate: tuple[VllmSpec, ColocateSpec] | None = None,
    assumptions: Assumptions = DEFAULT_ASSUMPTIONS,
) -> Choice:
    """Rank the legal layouts of a trainer.

    Args:
        batch: Decides which data-parallel sizes are legal.
        trainer: ``micro_batches`` is replaced by what each layout leads to.
        mean_length: Mean tokens of prompt and completion together, for the time; memory uses
            ``trainer.tokens``.
        colocate: vLLM on the same GPUs, if any.

    Raises:
        PlanError: If no layout is legal for the model and batch, or none fits; the problem then names the
            layout with the least memory, and what would help.
    """
    candidates = []
    for layout in enumerate_layouts(
        arch, world_size, gpus_per_node=gpus_per_node, megatron_core=megatron_core
    ):
        if errors_of(check_batch(batch, layout)):
            continue
        resolved = resolve_batch(batch, layout)
        spec = replace(trainer, micro_batches=resolved.gradient_accumulation)
        ranks = trainer_memory(arch, layout, spec)
        if colocate is not None:
            vllm = vllm_memory(arch, colocate[0], gpu)
            ranks = [colocated_memory(rank, vllm, colocate[1]) for rank in ranks]
        fullest: RankMemory = max(ranks, key=lambda rank: rank.peak)
        micro_batch = micro_batch_seconds(
            arch,
            layout,
            gpu,
            resolved.micro_batch_size * mean_length,
            mean_length,
            gpus_per_node,
            assumptions,
            full_recompute=trainer.recompute == "full",
            frozen=trainer.tuner == "lora",
        )
        seconds = pipeline_passes(layout.pp, resolved.gradient_accumulation) * micro_batch
        seconds += gradient_seconds(arch, layout, gpu, gpus_per_node, assumptions)
        fits = fullest.peak <= MEMORY_SHARE * gpu.memory
        candidates.append(Candidate(layout, fullest.peak, fullest.role, seconds, fits))
    if not candidates:
        raise PlanError([_no_legal_layout(arch, world_size, batch)])
    ranked = sorted(candidates, key=lambda c: (not c.fits, c.step_seconds if c.fits else c.peak))
    fitting = [candidate for candidate in ranked if candidate.fits]
    if not fitting:
        raise PlanError([_no_room(ranked[0], gpu, trainer)])
    fastest = fitting[0]
    alike = [c for c in fitting if c.step_seconds * (1 - WORTH_A_SPLIT) <= fastest.step_seconds]
    best = min(alike, key=lambda c: (c.layout.model_size, c.step_seconds))
    chosen = "the fastest"
    if best is not fastest:
        chosen = f"the least split within {WORTH_A_SPLIT:.0%} of the fastest ({fastest})"
    reason = (
        f"{best}; {chosen} of {len(fitting)} layouts that fit in {MEMORY_SHARE:.0%} of "
        f"{gpu.memory / GIB:.1f} GiB, out of {len(candidates)} legal ones"
    )
    return Choice(best, reason, (best, *(candidate for candidate in ranked if candidate is not best)))


def _no_legal_layout(arch: Architecture, world_size: int, batch: BatchSpec) -> Problem:
    why = (
        f"no layout of {world_size} ranks is legal for this {arch.model_type} and global_batch_size "
        f"{batch.global_batch_size}, micro_batch_size {batch.micro_batch_size}, num_generations "
        f"{batch.num_generations}; with trainer.parallel: {{tensor: 1}} the report says which rule is broken"
    )
    return Problem("auto_layout_is_legal", "trainer.parallel", "auto", why)


def _no_room(closest: Candidate, gpu: Gpu, trainer: TrainerSpec) -> Problem:
    helps = []
    if trainer.recompute != "full":
        helps.append("recompute full")
    if trainer.optimizer_offload < 1 and trainer.tuner == "full":
        helps.append("optimizer_cpu_offload")
    if trainer.tuner == "full":
        helps.append("LoRA")
    helps.append("more nodes")
    why = (
        f"no legal layout fits in {MEMORY_SHARE:.0%} of the {gpu.memory / GIB:.1f} GiB of a {gpu.name}; the "
        f"smallest is {closest}. What helps: {', '.join(helps)}"
    )
    return Problem("auto_layout_fits", "trainer.parallel", "auto", why)
