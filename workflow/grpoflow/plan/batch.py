"""Batch algebra of GRPO for both back ends of ms-swift 4.6.0.

All batch sizes count completions, not prompts. Symbols: W ranks, dp data-parallel size, mbs micro batch, gbs
completions per optimizer step, G generations per prompt, Ge the same at evaluation, gen completions per
rollout, spg steps that share one rollout. In `megatron rlhf` spg counts optimizer steps; in `swift rlhf` it
counts forward-backward passes, so the same number means something else there.

The row numbers in the docstrings follow the order in which the released code applies the rules; rows 8, 10
and 11 are the ones that it only applies at the first rollout, the first evaluation and at resume, after the
GPUs have been held for a while.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, gcd, lcm
from typing import Literal

from grpoflow.plan.layout import LayoutSpec, check_world_size
from grpoflow.plan.problem import (
    PlanError,
    Problem,
    check_positive,
    divisors,
    errors_of,
    nearest,
    nearest_multiples,
)


@dataclass(frozen=True)
class BatchSpec:
    """Batch keys of `megatron rlhf`, before resolution.

    Attributes:
        global_batch_size: Completions per optimizer step.
        micro_batch_size: Completions per forward-backward pass of one data-parallel group.
        num_generations: Completions per prompt.
        generation_batch_size: Completions per rollout; None derives it.
        steps_per_generation: Optimizer steps per rollout; None derives it.
        num_generations_eval: Completions per prompt at evaluation; None means num_generations.
        evaluates: Whether there is a validation set.
        val_prompts: Rows of the validation set if known.
        save_steps: Optimizer steps between checkpoints; None if the run is never resumed.
    """

    global_batch_size: int
    micro_batch_size: int = 1
    num_generations: int = 8
    generation_batch_size: int | None = None
    steps_per_generation: int | None = None
    num_generations_eval: int | None = None
    evaluates: bool = False
    val_prompts: int | None = None
    save_steps: int | None = None


@dataclass(frozen=True)
class SwiftBatchSpec:
    """Batch keys of `swift rlhf`, before resolution. Same meanings as :class:`BatchSpec`, except:

    Attributes:
        world_size: Trainer ranks.
        per_device_train_batch_size: Completions per forward-backward pass of one rank.
        gradient_accumulation_steps: Passes per optimizer step; 1 is the default for GRPO
            (swift arguments/rlhf_args.py:528-531), not the "16 / batch" rule of the other trainers.
        steps_per_generation: Forward-backward passes per rollout; None means gradient_accumulation_steps.
        num_iterations: Passes over the same rollout.
        per_device_eval_batch_size: Completions per rank and evaluation step.
    """

    world_size: int
    per_device_train_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    num_generations: int = 8
    generation_batch_size: int | None = None
    steps_per_generation: int | None = None
    num_iterations: int = 1
    per_device_eval_batch_size: int = 1
    num_generations_eval: int | None = None
    evaluates: bool = False
    val_prompts: int | None = None


@dataclass(frozen=True)
class Batch:
    """A resolved, legal batch. All sizes in completions unless they say prompts.

    Attributes:
        backend: Whose meaning ``steps_per_generation`` has.
        gradient_accumulation: Micro batches per optimizer step and data-parallel group.
        rollout_prompts: Prompts per rollout (num_rollout_prompts).
        train_prompts: Prompts per optimizer step; may be 0 when one group spans several steps.
        rollout_prompts_per_dp: Prompts per rollout of one data-parallel group.
        completions_per_rank: Completions that one rank asks the rollout for.
        updates_per_rollout: Optimizer steps made from one rollout; below 1 when one step needs several
            rollouts.
        resume_multiple: Steps at which a checkpoint can be resumed: multiples of this.
    """

    backend: Literal["megatron", "swift"]
    world_size: int
    dp_size: int
    edp_size: int
    global_batch_size: int
    micro_batch_size: int
    num_generations: int
    num_generations_eval: int
    generation_batch_size: int
    steps_per_generation: int
    num_iterations: int
    gradient_accumulation: int
    rollout_prompts: int
    train_prompts: int
    rollout_prompts_per_dp: int
    completions_per_rank: int
    updates_per_rollout: float
    resume_multiple: int


# --- megatron rlhf ---


@dataclass(frozen=True)
class _Numbers:
    """What the checks look at: the spec, the layout and the derived sizes, also where the spec is
    inconsistent."""

    spec: BatchSpec
    layout: LayoutSpec
    spg: int
    gen: int

    @property
    def eval_generations(self) -> int:
        return self.spec.num_generations_eval or self.spec.num_generations

    @property
    def step_unit(self) -> int:
        """Completions of one micro batch over all data-parallel groups."""
        return self.spec.micro_batch_size * self.layout.dp_size

    @property
    def rollout_unit(self) -> int:
        """gen is legal (rows 4-8) exactly when it is a multiple of this."""
        return lcm(self.spec.num_generations * self.step_unit, self.layout.world_size)

    @property
    def update_unit(self) -> int:
        """gbs is legal in rows 2 and 10 exactly when it is a multiple of this."""
        if not self.spec.evaluates:
            return self.step_unit
        return lcm(self.step_unit * self.eval_generations, self.layout.world_size)

    def legal_global_batch(self) -> tuple[int, ...]:
        spec = self.spec
        if spec.generation_batch_size is not None and spec.steps_per_generation is None:
            # gbs must also divide the generation batch that was asked for.
            return nearest(spec.global_batch_size, divisors(self.gen, lambda d: d % self.update_unit == 0))
        unit = lcm(self.update_unit, self.rollout_unit // gcd(self.rollout_unit, self.spg))
        return nearest_multiples(spec.global_batch_size, unit)

    def rollout_problem(self, id: str, why: str) -> Problem:
        """A broken rule about gen, keyed on the option that decides gen."""
        spec = self.spec
        if spec.generation_batch_size is not None and spec.steps_per_generation is None:
            legal = nearest_multiples(self.gen, lcm(spec.global_batch_size, self.rollout_unit))
            return Problem(id, "generation_batch_size", self.gen, why, legal)
        return Problem(id, "global_batch_size", spec.global_batch_size, why, self.legal_global_batch())


def _numbers(spec: BatchSpec, layout: LayoutSpec) -> _Numbers:
    """Resolve gen and spg as the released code does, and on as sensibly as possible where it would stop."""
    gen, spg = spec.generation_batch_size, spec.steps_per_generation
    if spg is None:
        spg = 1 if gen is None else max(1, gen // spec.global_batch_size)
        gen = spec.global_batch_size if gen is None else gen
    else:
        gen = spec.global_batch_size * spg
    return _Numbers(spec, layout, spg, gen)


def check_batch(spec: BatchSpec, layout: LayoutSpec) -> list[Problem]:
    """All problems of a `megatron rlhf` batch on a layout.

    Errors are the conditions under which ms-swift 4.6.0 or Megatron-core stops, at start-up or later. The
    rule that the micro batches of a rollout equal spg of them (grpo_trainer.py:239) follows from rows 2 and 3
    and has no check.
    """
    problems = check_positive(spec) + check_positive(layout)
    if problems:
        return problems
    numbers = _numbers(spec, layout)
    problems = check_world_size(layout)
    if layout.world_size % layout.model_size:
        return problems  # no data-parallel size exists, so that the other rules have no meaning
    return problems + [problem for check in _BATCH_CHECKS if (problem := check(numbers))]


def _check_global_batch(n: _Numbers) -> Problem | None:
    """Row 2: gbs % (mbs*dp) == 0 (swift megatron/arguments/megatron_args.py:1001-1011)."""
    gbs, unit = n.spec.global_batch_size, n.step_unit
    if gbs % unit == 0:
        return None
    why = (
        f"must be a multiple of micro_batch_size {n.spec.micro_batch_size} x dp_size {n.layout.dp_size} = "
        f"{unit}"
    )
    return Problem(
        "global_batch_divisible_by_micro_batch_dp", "global_batch_size", gbs, why, n.legal_global_batch()
    )


def _check_generation_batch(n: _Numbers) -> Problem | None:
    """Row 3: gen == gbs*spg, or gen % gbs == 0 (swift megatron/arguments/megatron_args.py:272-289)."""
    spec, gen = n.spec, n.spec.generation_batch_size
    if gen is None:
        return None
    if spec.steps_per_generation is not None:
        if gen == n.gen:
            return None
        why = (
            f"must equal global_batch_size {spec.global_batch_size} x steps_per_generation {n.spg} = {n.gen}"
        )
        return Problem("generation_batch_is_batch_times_steps", "generation_batch_size", gen, why, (n.gen,))
    if gen % spec.global_batch_size == 0:
        return None
    why = f"must be a multiple of global_batch_size {spec.global_batch_size}"
    return n.rollout_problem("generation_batch_divisible_by_global_batch", why)


def _check_generations(n: _Numbers) -> Problem | None:
    """Row 4: gen % G == 0 (swift megatron/arguments/megatron_args.py:291-293)."""
    if n.gen % n.spec.num_generations == 0:
        return None
    why = f"generation_batch_size {n.gen} must be a multiple of num_generations {n.spec.num_generations}"
    return n.rollout_problem("generation_batch_divisible_by_num_generations", why)


def _check_prompts_per_dp(n: _Numbers) -> Problem | None:
    """Row 5: (gen//G) % dp == 0 (swift megatron/arguments/megatron_args.py:310-319)."""
    prompts, dp = n.gen // n.spec.num_generations, n.layout.dp_size
    if prompts % dp == 0:
        return None
    why = (
        f"num_rollout_prompt {prompts} = generation_batch_size {n.gen} // num_generations "
        f"{n.spec.num_generations} must be a multiple of dp_size {dp}"
    )
    return n.rollout_problem("rollout_prompts_divisible_by_dp", why)


def _check_micro_batches_per_dp(n: _Numbers) -> Problem | None:
    """Row 6: (gen//G//dp) % mbs == 0 (swift megatron/arguments/megatron_args.py:321-325)."""
    prompts, mbs = n.gen // n.spec.num_generations // n.layout.dp_size, n.spec.micro_batch_size
    if prompts % mbs == 0:
        return None
    why = (
        f"the {prompts} rollout prompts of each dp group must be a multiple of micro_batch_size {mbs} (the "
        "code; the documentation asks it of global_batch_size, which matters for evaluation only)"
    )
    return n.rollout_problem("rollout_prompts_per_dp_divisible_by_micro_batch", why)


def _check_completions_per_rank(n: _Numbers) -> Problem | None:
    """Row 7: gen//W >= 1 (swift megatron/arguments/megatron_args.py:327-329)."""
    if n.gen >= n.layout.world_size:
        return None
    why = f"generation_batch_size {n.gen} gives some of the {n.layout.world_size} trainer ranks no completion"
    return n.rollout_problem("generation_batch_at_least_world_size", why)


def _check_completions_split_evenly(n: _Numbers) -> Problem | None:
    """Row 8: gen % W == 0; a bare assert at the first rollout (swift
    megatron/trainers/grpo_trainer.py:1357)."""
    if n.gen % n.layout.world_size == 0 or n.gen < n.layout.world_size:
        return None
    why = (
        f"generation_batch_size {n.gen} must be a multiple of the {n.layout.world_size} trainer ranks; "
        "ms-swift tests this by a bare assert at the first rollout"
    )
    return n.rollout_problem("generation_batch_divisible_by_world_size", why)


def _check_eval_batch(n: _Numbers) -> Problem | None:
    """Row 10: with a validation set, gbs % W == 0 and gbs % (dp*mbs*Ge) == 0; fires at the first evaluation,
    or evaluates fewer completions than it reports (swift megatron/trainers/grpo_trainer.py:1318-1357)."""
    gbs = n.spec.global_batch_size
    if not n.spec.evaluates or gbs % n.update_unit == 0:
        return None
    why = (
        f"with a validation set it must be a multiple of {n.layout.world_size} ranks and of dp_size "
        f"{n.layout.dp_size} x micro_batch_size {n.spec.micro_batch_size} x num_generations_eval "
        f"{n.eval_generations}; ms-swift stops at the first evaluation. The documentation's rule for prompts "
        "per data-parallel group is this one; for training the code asks it of generation_batch_size instead"
    )
    return Problem("eval_batch", "global_batch_size", gbs, why, n.legal_global_batch())


def _check_val_set(n: _Numbers) -> Problem | None:
    """A validation set below mbs*dp rows is dropped without a word (swift
    megatron/arguments/megatron_args.py:1170-1174); one that gbs/Ge does not divide makes successive
    evaluations see shifted subsets (the iterator is cyclic)."""
    prompts = n.spec.val_prompts
    if not n.spec.evaluates or prompts is None or n.spec.global_batch_size % n.update_unit:
        return None
    if prompts < n.step_unit:
        why = (
            f"a validation set of fewer than micro_batch_size x dp_size = {n.step_unit} rows is silently "
            "not used"
        )
        return Problem("val_set_is_used", "val_prompts", prompts, why, (n.step_unit,))
    unit = n.spec.global_batch_size // n.eval_generations
    if prompts % unit == 0:
        return None
    why = (
        f"one evaluation step takes global_batch_size / num_generations_eval = {unit} prompts; another size "
        "makes successive evaluations see different subsets"
    )
    return Problem("val_set_fixed", "val_prompts", prompts, why, nearest_multiples(prompts, unit), "warning")


def _check_resume(n: _Numbers) -> Problem | None:
    """Row 11: N*gbs % G == 0 and (N*gbs/G) % (mbs*dp) == 0 for a checkpoint at step N
    (swift megatron/trainers/base.py:1055-1060, batch_sampler.py:119)."""
    steps, unit = n.spec.save_steps, _resume_multiple(n)
    if steps is None or steps % unit == 0:
        return None
    why = (
        "a checkpoint can only be resumed where step x global_batch_size is a multiple of num_generations "
        f"x micro_batch_size x dp_size, that is at multiples of {unit} steps"
    )
    return Problem("checkpoint_can_be_resumed", "save_steps", steps, why, nearest_multiples(steps, unit))


def _check_exact_resume(n: _Numbers) -> Problem | None:
    """The rollout buffer is not saved: a resume generates a new one from the next prompt on
    (swift megatron/trainers/rollout_mixin.py:154-168), so that all later rollouts start at other steps."""
    steps = n.spec.save_steps
    if steps is None or steps % n.spg == 0 or steps % _resume_multiple(n):
        return None
    why = (
        f"a checkpoint inside a rollout of {n.spg} steps is resumed with a new rollout: the completions "
        "that follow come from another policy than without the stop"
    )
    legal = nearest_multiples(steps, lcm(n.spg, _resume_multiple(n)))
    return Problem("checkpoint_at_rollout_boundary", "save_steps", steps, why, legal, "warning")


_BATCH_CHECKS: tuple[Callable[[_Numbers], Problem | None], ...] = (
    _check_global_batch,
    _check_generation_batch,
    _check_generations,
    _check_prompts_per_dp,
    _check_micro_batches_per_dp,
    _check_completions_per_rank,
    _check_completions_split_evenly,
    _check_eval_batch,
    _check_val_set,
    _check_resume,
    _check_exact_resume,
)


def _resume_multiple(n: _Numbers) -> int:
    unit = n.spec.num_generations * n.step_unit
    return unit // gcd(n.spec.global_batch_size, unit)


def resolve_batch(spec: BatchSpec, layout: LayoutSpec) -> Batch:
    """The sizes that a legal `megatron rlhf` batch leads to.

    Raises:
        PlanError: With all errors of :func:`check_batch`.
    """
    errors = errors_of(check_batch(spec, layout))
    if errors:
        raise PlanError(errors)
    n = _numbers(spec, layout)
    return Batch(
        backend="megatron",
        world_size=layout.world_size,
        dp_size=layout.dp_size,
        edp_size=layout.edp_size,
        global_batch_size=spec.global_batch_size,
        micro_batch_size=spec.micro_batch_size,
        num_generations=spec.num_generations,
        num_generations_eval=n.eval_generations,
        generation_batch_size=n.gen,
        steps_per_generation=n.spg,
        num_iterations=1,  # more is a ValueError (swift megatron/arguments/megatron_args.py:400)
        gradient_accumulation=spec.global_batch_size // n.step_unit,
        rollout_prompts=n.gen // spec.num_generations,
        train_prompts=spec.global_batch_size // spec.num_generations,
        rollout_prompts_per_dp=n.gen // spec.num_generations // layout.dp_size,
        completions_per_rank=n.gen // layout.world_size,
        updates_per_rollout=n.spg,
        resume_multiple=_resume_multiple(n),
    )


def train_iters(batch: Batch, prompts: int, epochs: int) -> int:
    """Optimizer steps of `megatron rlhf` for ``epochs`` passes over ``prompts`` rows.

    ``len // (mbs*dp) * (mbs*dp) * G * epochs // gbs`` (swift megatron/arguments/megatron_args.py:1149-1152).
    The released code overrides --train_iters by this whenever --num_train_epochs is given.
    """
    unit = batch.micro_batch_size * batch.dp_size
    return prompts // unit * unit * batch.num_generations * epochs // batch.global_batch_size


def default_eval_iters(batch: Batch, val_prompts: int) -> int:
    """What `megatron rlhf` makes of --eval_iters -1: it uses G where Ge would be right
    (swift megatron/arguments/megatron_args.py:1156-1174). 0 means that the validation set is not used."""
    unit = batch.micro_batch_size * batch.dp_size
    if val_prompts < unit:
        return 0
    return max(val_prompts // unit * unit * batch.num_generations // batch.global_batch_size, 1)


def exact_eval_iters(batch: Batch, val_prompts: int) -> int:
    """The --eval_iters that sees every validation prompt at most once: ``val_prompts * Ge // gbs``."""
    return val_prompts * batch.num_generations_eval // batch.global_batch_size


# --- swift rlhf ---


def _swift_generation(spec: SwiftBatchSpec) -> tuple[int, int]:
    """(gen, spg) as swift rlhf_trainers/args_mixin.py:200-222 resolves them, without its errors."""
    per_pass = spec.per_device_train_batch_size * spec.world_size
    gen, spg = spec.generation_batch_size, spec.steps_per_generation
    if spg is not None:
        return per_pass * spg, spg
    if gen is not None:
        return gen, max(1, gen // per_pass)
    return per_pass * spec.gradient_accumulation_steps, spec.gradient_accumulation_steps


def check_swift_batch(spec: SwiftBatchSpec) -> list[Problem]:
    """All problems of a `swift rlhf --rlhf_type grpo` batch (swift rlhf_trainers/args_mixin.py:200-241,
    arguments/rlhf_args.py:409, rlhf_trainers/grpo_trainer.py:123-130)."""
    problems = check_positive(spec)
    if problems:
        return problems
    return [problem for check in _SWIFT_CHECKS if (problem := check(spec))]


def _swift_rollout_problem(spec: SwiftBatchSpec, id: str, why: str, unit: int) -> Problem:
    """A broken rule "gen is a multiple of unit", keyed on the option that decides gen."""
    per_pass = spec.per_device_train_batch_size * spec.world_size
    gen, spg = _swift_generation(spec)
    unit = lcm(unit, per_pass)
    if spec.steps_per_generation is not None:
        return Problem(id, "steps_per_generation", spg, why, nearest_multiples(spg, unit // per_pass))
    if spec.generation_batch_size is not None:
        return Problem(id, "generation_batch_size", gen, why, nearest_multiples(gen, unit))
    return Problem(id, "gradient_accumulation_steps", spg, why, nearest_multiples(spg, unit // per_pass))


def _check_swift_generation_batch(spec: SwiftBatchSpec) -> Problem | None:
    gen, per_pass = spec.generation_batch_size, spec.per_device_train_batch_size * spec.world_size
    if gen is None:
        return None
    if spec.steps_per_generation is not None:
        resolved, spg = _swift_generation(spec)
        if gen == resolved:
            return None
        why = (
            f"must equal per_device_train_batch_size x ranks {per_pass} x steps_per_generation {spg} = "
            f"{resolved}"
        )
        return Problem(
            "generation_batch_is_batch_times_steps", "generation_batch_size", gen, why, (resolved,)
        )
    if gen % per_pass == 0:
        return None
    why = f"must be a multiple of per_device_train_batch_size x {spec.world_size} ranks = {per_pass}"
    return _swift_rollout_problem(
        spec, "generation_batch_divisible_by_global_batch", why, spec.num_generations
    )


def _check_swift_generations(spec: SwiftBatchSpec) -> Problem | None:
    gen, _ = _swift_generation(spec)
    if spec.num_generations == 1:
        why = "GRPO compares the completions of one prompt and needs at least 2"
        return Problem(
            "grpo_needs_a_group", "num_generations", 1, why, nearest(8, divisors(gen, lambda d: d > 1))
        )
    if gen % spec.num_generations == 0:
        return None
    why = f"generation_batch_size {gen} must be a multiple of num_generations {spec.num_generations}"
    return _swift_rollout_problem(
        spec, "generation_batch_divisible_by_num_generations", why, spec.num_generations
    )


def _check_swift_eval_batch(spec: SwiftBatchSpec) -> Problem | None:
    generations = spec.num_generations_eval or spec.num_generations
    size = spec.per_device_eval_batch_size
    if not spec.evaluates or size * spec.world_size % generations == 0:
        return None
    why = f"x {spec.world_size} ranks must be a multiple of num_generations_eval {generations}"
    legal = nearest_multiples(size, generations // gcd(generations, spec.world_size))
    return Problem("eval_batch", "per_device_eval_batch_size", size, why, legal)


def _check_swift_val_set(spec: SwiftBatchSpec) -> Problem | None:
    generations = spec.num_generations_eval or spec.num_generations
    needed = spec.per_device_eval_batch_size * spec.world_size // generations
    if not spec.evaluates or spec.val_prompts is None or spec.val_prompts >= needed:
        return None
    why = f"one evaluation step takes {needed} prompts, and the trainer asserts that there are as many"
    return Problem("val_set_is_used", "val_prompts", spec.val_prompts, why, (needed,))


_SWIFT_CHECKS: tuple[Callable[[SwiftBatchSpec], Problem | None], ...] = (
    _check_swift_generation_batch,
    _check_swift_generations,
    _check_swift_eval_batch,
    _check_swift_val_set,
)


def resolve_swift_batch(spec: SwiftBatchSpec) -> Batch:
    """The sizes that a legal `swift rlhf` batch leads to; every rank is its own data-parallel group.

    Raises:
        PlanError: With all errors of :func:`check_swift_batch`.
    """
    errors = errors_of(check_swift_batch(spec))
    if errors:
        raise PlanError(errors)
    gen, spg = _swift_generation(spec)
    accumulation = spec.gradient_accumulation_steps
    global_batch = spec.per_device_train_batch_size * spec.world_size * accumulation
    return Batch(
        backend="swift",
        world_size=spec.world_size,
        dp_size=spec.world_size,
        edp_size=spec.world_size,
        global_batch_size=global_batch,
        micro_batch_size=spec.per_device_train_batch_size,
        num_generations=spec.num_generations,
        num_generations_eval=spec.num_generations_eval or spec.num_generations,
        generation_batch_size=gen,
        steps_per_generation=spg,
        num_iterations=spec.num_iterations,
        gradient_accumulation=accumulation,
        rollout_prompts=gen // spec.num_generations,
        train_prompts=global_batch // spec.num_generations,
        rollout_prompts_per_dp=gen // spec.num_generations // spec.world_size,
        completions_per_rank=gen // spec.world_size,
        updates_per_rollout=spg * spec.num_iterations / accumulation,
        # swift rlhf_trainers/grpo_trainer.py:1834-1840
        resume_multiple=1,
    )


def swift_train_steps(batch: Batch, prompts: int, epochs: float) -> int:
    """Optimizer steps of `swift rlhf` for ``epochs`` passes over ``prompts`` rows.

    The sampler yields whole rollouts only and repeats each spg * num_iterations times (trl trainer/utils.py,
    RepeatSampler); the steps per epoch are rounded up (transformers Trainer.set_initial_training_values).
    """
    passes = prompts // batch.rollout_prompts * batch.steps_per_generation * batch.num_iterations
    return ceil(epochs * max(ceil(passes / batch.gradient_accumulation), 1))
