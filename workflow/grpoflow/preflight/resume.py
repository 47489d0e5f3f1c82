"""Checkpoints: whether a stopped run can go on, and how much it loses."""

from __future__ import annotations

from collections.abc import Iterator

from grpoflow.commands import cpu
from grpoflow.config.base import as_read

from .estimate import run_steps, step_time
from .report import Level
from .rules import Finding, rule
from .subject import Subject

LOADING_SECONDS = 30 * 60
"""Servers and trainer loading their weights at the start of an attempt [assumption]."""


@rule(evidence="swift megatron/trainers/base.py:848-865, ms-swift#9438", level="warn")
def run_can_be_resumed(subject: Subject) -> Iterator[Finding]:
    """Protects from a run that starts over after wall-time, preemption or a node failure."""
    trainer = subject.config.trainer
    if trainer.save_optimizer:
        return
    why = "checkpoints without optimizer and random state cannot be resumed from"
    if trainer.backend == "megatron" and trainer.tuner == "lora":
        why += "; of a LoRA run only the merged model is kept then, without the adapter"
    yield Finding("trainer.save_optimizer", False, why, (True,))


@rule(
    evidence="megatron-core 0.16.0 to 0.18.0 megatron/core/optimizer/distrib_optimizer.py: "
    "load_parameter_state_from_dp_reshardable, the only loader without torch.no_grad"
)
def float32_optimizer_can_be_loaded(subject: Subject) -> Iterator[Finding]:
    """Protects from checkpoints of float32 weights whose distributed optimizer nobody can load: 'a view of a
    leaf Variable that requires grad is being used in an in-place operation'.

    Shards of bfloat16 weights have a copy in float32 of their own; those of float32 weights are views of the
    weights, and the loader of the default format writes into them. The two other formats load without
    gradients.
    """
    config = subject.config
    trainer = config.trainer
    if trainer.backend != "megatron" or config.model.torch_dtype != "float32" or not trainer.save_optimizer:
        return
    args = cpu.arguments(config, cpu.MEGATRON) | as_read(trainer.args)
    loadable = ("dist_ckpt_optim_fully_reshardable", "dist_ckpt_save_pre_mcore_014", "use_megatron_fsdp")
    if args.get("use_distributed_optimizer", True) and not any(args.get(name) for name in loadable):
        why = (
            "with torch_dtype float32 the distributed optimizer is saved in a form that megatron-core cannot "
            "load again: the run could never be resumed. Save it in the other form, or keep it whole on each "
            "rank with trainer.args.use_distributed_optimizer: false"
        )
        yield Finding("trainer.args.dist_ckpt_optim_fully_reshardable", args.get(loadable[0]), why, (True,))


@rule(evidence="swift megatron/trainers/base.py: saves at save_steps and at the last iteration", level="warn")
def run_saves_before_its_end(subject: Subject) -> Iterator[Finding]:
    """Protects from a run whose only checkpoint is the last one."""
    trainer = subject.config.trainer
    if trainer.train_steps is not None and trainer.save_steps > trainer.train_steps:
        why = f"more than the {trainer.train_steps} steps of the run: a failure costs all of it"
        yield Finding("trainer.save_steps", trainer.save_steps, why, (max(1, trainer.train_steps // 4),))


@rule(evidence="workflow/grpoflow/stages/models.py")
def exported_checkpoint_will_exist(subject: Subject) -> Iterator[Finding]:
    """Protects from an export that finds no checkpoint after the training."""
    wanted = subject.config.export.checkpoint
    if isinstance(wanted, int):
        for _, why, level, kept in _not_kept(subject, [wanted]):
            yield Finding("export.checkpoint", wanted, why, ("last", *kept), level)


@rule(evidence="workflow/grpoflow/stages/evaluate.py")
def evaluated_checkpoints_will_exist(subject: Subject) -> Iterator[Finding]:
    """Protects from an evaluation that finds no checkpoint of a step after the training."""
    wanted = subject.config.evaluate.checkpoints
    if isinstance(wanted, list):
        for missing, why, level, kept in _not_kept(subject, wanted):
            there = [step for step in wanted if step not in missing] or list(kept)
            legal = (there, "all") if there else ("all",)
            yield Finding("evaluate.checkpoints", wanted, why, legal, level)


def _not_kept(subject: Subject, wanted: list[int]) -> Iterator[tuple[list[int], str, Level, tuple[int, ...]]]:
    """The steps of which no checkpoint is left after the training, why, and those that are left.

    With `epochs` the last step follows from the rows, so that it is not known yet.
    """
    trainer = subject.config.trainer
    every, most, steps = trainer.save_steps, trainer.save_total_limit, trainer.train_steps
    if steps is None:
        missing = [step for step in wanted if step < 1 or step % every]
        level: Level = "refuse" if any(step < 1 for step in missing) else "warn"
        why = f"a run saves every {every} steps (trainer.save_steps), and its last one"
        kept: tuple[int, ...] = ()
    else:
        last = steps // every
        saved = {steps, *(every * n for n in range(max(1, last - most + 1), last + 1))}
        kept, level = tuple(sorted(saved)[-most:]), "refuse"
        missing = [step for step in wanted if step not in kept]
        shown = ", ".join(map(str, kept if len(kept) <= 8 else (*kept[:3], "...", *kept[-3:])))
        why = f"the run keeps the checkpoints {shown} (trainer.save_steps, trainer.save_total_limit)"
    if missing:
        yield missing, f"not step {', '.join(map(str, missing))}: {why}", level, kept


@rule(evidence="time estimate of the plan", level="warn", needs="architecture")
def wall_time_covers_a_save(subject: Subject) -> Iterator[Finding]:
    """Protects from an attempt that ends before its first checkpoint: the run would never get further."""
    step, trainer = step_time(subject), subject.config.trainer
    if step is None:
        return
    steps = min(trainer.save_steps, run_steps(subject) or trainer.save_steps)
    needed = (steps * step.step_seconds + LOADING_SECONDS) / 60
    if needed > subject.wall_time:
        fitting = int((subject.wall_time * 60 - LOADING_SECONDS) / step.step_seconds)
        why = (
            f"x {step.step_seconds:.0f} s per step (estimate) and {LOADING_SECONDS // 60} min of loading are "
            f"{needed:.0f} min; the wall-time is {subject.wall_time} min (resource runtime of train_grpo)"
        )
        yield Finding("trainer.save_steps", trainer.save_steps, why, (fitting,) if fitting > 0 else ())
