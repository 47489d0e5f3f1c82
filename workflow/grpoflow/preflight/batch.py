"""Batch arithmetic of GRPO and SFT.

ms-swift applies several of these rules only after torch.distributed is up, three of them at the first
rollout, the first evaluation or at resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, lcm
from pathlib import Path

from grpoflow.plan.batch import (
    check_batch,
    check_swift_batch,
    default_eval_iters,
    exact_eval_iters,
    resolve_batch,
)
from grpoflow.plan.inputs import batch_spec, integer, sft_swift_ranks, swift_batch_spec
from grpoflow.plan.problem import errors_of, nearest_multiples

from .from_plan import finding
from .rules import Finding, rule, rules
from .subject import Subject

ARGS = "swift megatron/arguments/megatron_args.py"

MEGATRON_RULES = {
    "counts_are_positive": ("a batch of nothing, by which the other rules would divide", f"{ARGS}:272-329"),
    "world_size_fits_dense_layout": (
        "ranks that do not make up whole replicas of the dense layers",
        "megatron/core/parallel_state.py:740",
    ),
    "world_size_fits_expert_layout": (
        "ranks that do not make up whole replicas of the experts",
        "megatron/core/parallel_state.py:792",
    ),
    "global_batch_divisible_by_micro_batch_dp": (
        "a global batch that is not a whole number of micro batches on every data-parallel group",
        f"{ARGS}:1001-1011, ms-swift#8103",
    ),
    "generation_batch_is_batch_times_steps": (
        "two keys that give the size of a rollout and disagree",
        f"{ARGS}:272-289",
    ),
    "generation_batch_divisible_by_num_generations": (
        "a rollout that is not a whole number of groups",
        f"{ARGS}:291-293, ms-swift#3980",
    ),
    "rollout_prompts_divisible_by_dp": (
        "prompts that do not split over the data-parallel groups, found after torch.distributed is up",
        f"{ARGS}:310-319, ms-swift#6898",
    ),
    "rollout_prompts_per_dp_divisible_by_micro_batch": (
        "prompts of a data-parallel group that are not a whole number of micro batches",
        f"{ARGS}:321-325",
    ),
    "generation_batch_at_least_world_size": ("ranks without a completion", f"{ARGS}:327-329"),
    "generation_batch_divisible_by_world_size": (
        "a bare AssertionError at the first rollout",
        "swift megatron/trainers/grpo_trainer.py:1357",
    ),
    "eval_batch": (
        "an error at the first evaluation, after hours of training",
        "swift megatron/trainers/grpo_trainer.py:1318-1357",
    ),
    "checkpoint_can_be_resumed": (
        "checkpoints that no run can be resumed from",
        "swift megatron/trainers/base.py:1055-1060, megatron/trainers/batch_sampler.py:119",
    ),
    "checkpoint_at_rollout_boundary": (
        "a resumed run that differs from one without the stop",
        "swift megatron/trainers/rollout_mixin.py:154-168",
    ),
}

VALIDATION_RULES = {
    "val_set_is_used": ("a validation set that training leaves out without a word", f"{ARGS}:1170-1174"),
    "val_set_fixed": (
        "evaluations during training that ask different prompts each time",
        "swift megatron/trainers/base.py:310-316",
    ),
    "val_set_seen_once": (
        "evaluations during training that ask every prompt several times",
        f"{ARGS}:1156-1162, which counts num_generations where num_generations_eval is meant",
    ),
}

SWIFT_EVIDENCE = "swift rlhf_trainers/args_mixin.py:200-241, ms-swift#3980, trl#3061"


@rules(MEGATRON_RULES)
def megatron_batch(subject: Subject) -> Iterator[Finding]:
    """The batch of `megatron rlhf` on its layout."""
    trainer = subject.config.trainer
    if trainer.backend != "megatron" or subject.layout.spec is None or subject.world_size < 1:
        return
    for problem in check_batch(batch_spec(subject.config), subject.layout.spec):
        yield finding(problem, subject, "trainer")


@rules(VALIDATION_RULES, needs="data")
def validation_set_of_training(subject: Subject) -> Iterator[Finding]:
    """The file in `trainer.args.val_dataset`, such as the eval.jsonl of stage cache_dataset."""
    trainer, layout = subject.config.trainer, subject.layout.spec
    path = Path(str(trainer.args.get("val_dataset", "")))
    if trainer.backend != "megatron" or layout is None or path.suffix != ".jsonl" or not path.is_file():
        return
    with path.open(encoding="utf-8") as content:
        rows = sum(1 for line in content if line.strip())
    spec = replace(batch_spec(subject.config), val_prompts=rows)
    problems = check_batch(spec, layout)
    for problem in problems:
        if problem.id in VALIDATION_RULES:
            found = finding(problem, subject, "trainer")
            yield replace(found, key="trainer.args.val_dataset", value=f"{path} ({rows} rows)")
    if errors_of(problems) or (integer(trainer.args, "eval_iters") or -1) != -1:
        return
    batch = resolve_batch(spec, layout)
    taken, exact = default_eval_iters(batch, rows), exact_eval_iters(batch, rows)
    if taken > exact > 0:
        why = f"makes {taken} iterations of {exact} that ask each of the {rows} prompts once"
        yield Finding("trainer.args.eval_iters", -1, why, (exact,), "warn", "val_set_seen_once")


@rule(evidence="transformers Trainer: steps are whole passes of every rank")
def global_batch_divisible_by_device_batch(subject: Subject) -> Iterator[Finding]:
    """Protects from a global batch that the ranks of the swift backend cannot make up."""
    trainer = subject.config.trainer
    if trainer.backend != "swift" or subject.world_size < 1:
        return
    unit = trainer.micro_batch_size * subject.world_size
    if trainer.global_batch_size % unit:
        why = (
            f"must be a multiple of micro_batch_size {trainer.micro_batch_size} x {subject.world_size} ranks "
            f"= {unit}"
        )
        legal = nearest_multiples(trainer.global_batch_size, _swift_unit(subject))
        yield Finding("trainer.global_batch_size", trainer.global_batch_size, why, legal)


@rule(evidence=SWIFT_EVIDENCE)
def swift_groups_are_whole(subject: Subject) -> Iterator[Finding]:
    """Protects from a rollout of the swift backend that is not a whole number of groups."""
    trainer = subject.config.trainer
    spec = swift_batch_spec(subject.config, subject.world_size) if subject.world_size > 0 else None
    if trainer.backend != "swift" or spec is None:
        return
    for problem in check_swift_batch(spec):
        if problem.key in ("steps_per_generation", "gradient_accumulation_steps"):
            legal = nearest_multiples(trainer.global_batch_size, _swift_unit(subject))
            yield Finding("trainer.global_batch_size", trainer.global_batch_size, problem.why, legal)
        else:
            yield finding(problem, subject, "trainer", rule="swift_groups_are_whole")


def _swift_unit(subject: Subject) -> int:
    """Global batches that are legal in the swift backend are the multiples of this."""
    trainer = subject.config.trainer
    groups = trainer.num_generations // gcd(trainer.num_generations, trainer.steps_per_generation)
    return lcm(trainer.micro_batch_size * subject.world_size, groups)


@rule(evidence=f"{ARGS}:1001-1011")
def sft_batch_fits_ranks(subject: Subject) -> Iterator[Finding]:
    """Protects from an SFT batch that the ranks cannot make up."""
    sft = subject.config.sft
    if sft is None:
        return
    spec = subject.sft_layout.spec
    if sft.backend == "swift":
        ranks = sft_swift_ranks(sft, subject.sft_world_size)
    elif spec is None or spec.world_size % spec.model_size:
        return
    else:
        ranks = spec.dp_size
    unit = sft.micro_batch_size * ranks
    if sft.global_batch_size % unit:
        why = (
            f"must be a multiple of micro_batch_size {sft.micro_batch_size} x {ranks} data-parallel ranks = "
            f"{unit}"
        )
        legal = nearest_multiples(sft.global_batch_size, unit)
        yield Finding("sft.global_batch_size", sft.global_batch_size, why, legal)
