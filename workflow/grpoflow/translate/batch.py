"""Completions and prompts per optimizer step and per rollout: what a translation must not change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, gcd
from typing import Any

from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.plan.batch import BatchSpec, SwiftBatchSpec, check_batch, check_swift_batch
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.problem import Problem, errors_of

from .programs import Program

LAYOUT = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
ASSUMED_GPUS = 8


@dataclass(frozen=True)
class Numbers:
    """What one optimizer step and one rollout consist of. Without GRPO, completions are sequences.

    rollout: completions per rollout; None without GRPO. generations: completions per prompt. iterations:
    passes over the same rollout.
    """

    world_size: int
    step: int
    rollout: int | None = None
    generations: int | None = None
    iterations: int = 1

    def same_training(self, other: Numbers) -> bool:
        """Whether both make the same steps from the same rollouts, on whatever number of GPUs."""
        mine = (self.step, self.rollout, self.generations, self.iterations)
        return mine == (other.step, other.rollout, other.generations, other.iterations)

    def as_json(self) -> dict[str, Any]:
        """Plain data; prompts may be a fraction where one group spans several steps."""
        prompts: dict[str, float] = {}
        if self.rollout is not None and self.generations is not None:
            prompts["prompts_per_step"] = self.step / self.generations
            prompts["prompts_per_rollout"] = self.rollout / self.generations
        return {**asdict(self), **prompts}

    def __str__(self) -> str:
        if self.rollout is None or self.generations is None:
            return f"{self.step} sequences per optimizer step on {self.world_size} GPUs"
        prompts = [
            f"{_number(Fraction(count, self.generations))} prompts" for count in (self.step, self.rollout)
        ]
        iterations = f", used {self.iterations} times" if self.iterations > 1 else ""
        return (
            f"{self.step} completions ({prompts[0]}) per optimizer step, {self.rollout} ({prompts[1]}) per "
            f"rollout{iterations}, {self.generations} completions per prompt, on {self.world_size} GPUs"
        )


def _number(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):g}"


@dataclass(frozen=True)
class BatchComparison:
    """The numbers before and after. why: why they differ, or cannot be compared; "" if they are the same."""

    command: str
    before: Numbers | None
    after: Numbers | None
    why: str

    @property
    def same(self) -> bool:
        return self.before is not None and self.after is not None and self.before.same_training(self.after)

    def lines(self) -> Iterator[str]:
        """The report, in lines."""
        if self.same:
            yield f"Batch of {self.command}: the same before and after."
            yield f"  {self.after}"
            if self.before and self.after and self.before.world_size != self.after.world_size:
                yield f"  (before: on {self.before.world_size} GPUs)"
            return
        yield f"Batch of {self.command}: NOT the same before and after."
        yield f"  before: {self.before or 'not known'}"
        yield f"  after:  {self.after or 'not known'}"
        yield f"  why:    {self.why}"

    def as_json(self) -> dict[str, Any]:
        """The comparison as plain data, with prompts next to completions."""
        return {
            "command": self.command,
            "same": self.same,
            "why": self.why,
            "before": self.before and self.before.as_json(),
            "after": self.after and self.after.as_json(),
        }


def is_grpo(program: Program) -> bool:
    return program.name.endswith("rlhf") and program.value("rlhf_type", "dpo") == "grpo"


def world_of(program: Program) -> tuple[int | None, int | None]:
    """(processes per node, nodes) as ms-swift starts them; None for one that only a running shell knows.

    Without NPROC_PER_NODE and NNODES there is one process (swift/cli/main.py:71-80).
    """
    sizes = []
    for name in ("NPROC_PER_NODE", "NNODES"):
        word = program.env.get(name)
        sizes.append(
            1 if word is None else int(word.text) if word.text.isdigit() and int(word.text) else None
        )
    return sizes[0], sizes[1]


def world_size_of(program: Program) -> int:
    """Ranks of the program; where the script does not say, 8 GPUs on each node are assumed."""
    nproc, nnodes = world_of(program)
    return (nproc or ASSUMED_GPUS) * (nnodes or 1)


def layout_of(program: Program) -> LayoutSpec:
    """Parallel layout; the swift backend has data parallelism only."""
    if program.backend == "swift":
        return LayoutSpec(world_size_of(program))
    tp, pp, cp, ep, etp = (_size(program, name, 1) for name in LAYOUT)
    return LayoutSpec(world_size_of(program), tp, pp, cp, ep, etp)


def sharing_of(program: Program) -> int:
    """How many ranks of the swift backend share their sequences, so that fewer make a step.

    GRPO accumulates as many times more instead (swift/rlhf_trainers/grpo_trainer.py:171).
    """
    if program.backend == "megatron" or is_grpo(program):
        return 1
    return min(_size(program, "sequence_parallel_size", 1), world_size_of(program))


def swift_formula(program: Program) -> str:
    """How the sequences of a step of the swift backend come about."""
    spec, sharing = swift_spec(program), sharing_of(program)
    shared = "" if sharing == 1 else f" / {sharing} that share their sequences"
    return (
        f"{spec.per_device_train_batch_size} per GPU x {spec.world_size} GPUs{shared} x "
        f"{spec.gradient_accumulation_steps} accumulation steps = {numbers_of(program).step}"
    )


def evaluates(program: Program) -> bool:
    """Whether the training evaluates in between: there is a validation set and it is not switched off."""
    has_set = bool(program.value("val_dataset")) or program.value("split_dataset_ratio", 0) > 0
    if program.backend == "megatron":
        return has_set and bool(program.value("eval_iters", -1))
    return has_set and bool(program.value("eval_strategy", program.value("save_strategy", "steps")) != "no")


def _size(program: Program, name: str, default: int) -> int:
    """A size that has to be at least 1; the default where it is not given, not known or not legal."""
    value = program.value(name)
    return value if isinstance(value, int) and value >= 1 else default


def _optional_size(program: Program, name: str) -> int | None:
    return _size(program, name, 0) or None


def swift_spec(program: Program) -> SwiftBatchSpec:
    """The batch of `swift rlhf` or `swift sft`, with the defaults of the release."""
    world_size = world_size_of(program)
    size = _size(program, "per_device_train_batch_size", 1)
    # 1 for GRPO (swift/arguments/rlhf_args.py:528), else trainers/arguments.py:289
    default = 1 if is_grpo(program) else max(1, ceil(16 / size / world_size))
    return SwiftBatchSpec(
        world_size=world_size,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=_size(program, "gradient_accumulation_steps", default),
        num_generations=_size(program, "num_generations", 8),
        generation_batch_size=_optional_size(program, "generation_batch_size"),
        steps_per_generation=_optional_size(program, "steps_per_generation"),
        num_iterations=_size(program, "num_iterations", 1),
        per_device_eval_batch_size=_size(program, "per_device_eval_batch_size", 1),
        num_generations_eval=_optional_size(program, "num_generations_eval"),
        evaluates=evaluates(program),
    )


def megatron_spec(program: Program) -> BatchSpec:
    """The batch of `megatron rlhf` or `megatron sft`, with the defaults of the release."""
    return BatchSpec(
        global_batch_size=_size(program, "global_batch_size", 16),
        micro_batch_size=_size(program, "micro_batch_size", 1),
        num_generations=_size(program, "num_generations", 8),
        generation_batch_size=_optional_size(program, "generation_batch_size"),
        steps_per_generation=_optional_size(program, "steps_per_generation"),
        num_generations_eval=_optional_size(program, "num_generations_eval"),
        evaluates=evaluates(program),
    )


def numbers_of(program: Program) -> Numbers:
    """What the command trains on, for either backend.

    swift: step = per_device_train_batch_size x ranks x gradient_accumulation_steps; steps_per_generation
    counts forward-backward passes. megatron: step = global_batch_size; steps_per_generation counts steps.
    """
    if program.backend == "swift":
        spec = swift_spec(program)
        per_pass = spec.per_device_train_batch_size * (spec.world_size // sharing_of(program))
        step = per_pass * spec.gradient_accumulation_steps
        rollout = per_pass * (spec.steps_per_generation or 0) or spec.generation_batch_size or step
    else:
        batch = megatron_spec(program)
        step = batch.global_batch_size
        rollout = step * (batch.steps_per_generation or 0) or batch.generation_batch_size or step
    world_size = world_size_of(program)
    if not is_grpo(program):
        return Numbers(world_size, step)
    generations = _size(program, "num_generations", 8)
    return Numbers(world_size, step, rollout, generations, _size(program, "num_iterations", 1))


def problems_of(program: Program) -> list[Problem]:
    """What ms-swift refuses in the batch, now or later."""
    if program.backend == "swift":
        return errors_of(check_swift_batch(swift_spec(program))) if is_grpo(program) else []
    if is_grpo(program):
        return errors_of(check_batch(megatron_spec(program), layout_of(program)))
    return _without_grpo(megatron_spec(program), layout_of(program))


def _without_grpo(spec: BatchSpec, layout: LayoutSpec) -> list[Problem]:
    """The rules on ranks and global batch, which hold for SFT too."""
    rules = (
        "world_size_fits_dense_layout",
        "world_size_fits_expert_layout",
        "global_batch_divisible_by_micro_batch_dp",
    )
    sequences = BatchSpec(spec.global_batch_size, spec.micro_batch_size, num_generations=1)
    return [problem for problem in check_batch(sequences, layout) if problem.id in rules]


def unknown_of(program: Program) -> list[str]:
    """Why the numbers of this command are not certain: values that the script leaves open."""
    unknown = []
    if program.file is not None:
        unknown.append(f"the arguments in {program.file.text} are not known")
    for name, size in zip(("NPROC_PER_NODE", "NNODES"), world_of(program), strict=True):
        if size is None:
            assumed = ASSUMED_GPUS if name == "NPROC_PER_NODE" else 1
            unknown.append(
                f"{name} is {program.env[name].text}, which the script does not define; {assumed} is assumed"
            )
    for name in (
        *(
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "micro_batch_size",
            "global_batch_size",
        ),
        *(
            "steps_per_generation",
            "generation_batch_size",
            "num_generations",
            "num_iterations",
            *("sequence_parallel_size", *LAYOUT),
        ),
    ):
        given = program.given.get(name)
        legal = given is None or (given.usable and isinstance(given.value, int) and given.value >= 1)
        if given is not None and not legal:
            unknown.append(f"--{given.written} is {given.text}, and its default is assumed")
    return unknown


def numbers_of_config(config: Config, section: str) -> Numbers:
    """What the GRPO stage (section "trainer") or the SFT stage ("sft") of a configuration trains on."""
    if section == "sft":
        if config.sft is None:
            raise ValueError("this configuration has no sft section")
        return Numbers(config.sft.nodes * config.cluster.gpus_per_node, config.sft.global_batch_size)
    trainer = config.trainer
    return Numbers(
        trainer.nodes * (trainer.gpus or config.cluster.gpus_per_node),
        trainer.global_batch_size,
        trainer.global_batch_size * trainer.steps_per_generation,
        trainer.num_generations,
        trainer.args.get("num_iterations", 1),
    )


def problems_of_config(config: Config, section: str, world_size: int) -> list[Problem]:
    """What ms-swift would refuse in the batch of a stage."""
    tuner = config.sft if section == "sft" else config.trainer
    if tuner is None:
        raise ValueError("this configuration has no sft section")
    micro, step, trainer = tuner.micro_batch_size, tuner.global_batch_size, config.trainer
    if tuner.backend == "swift":
        accumulation, rest = divmod(step, micro * world_size)
        if rest:
            why = f"must be a multiple of micro_batch_size {micro} x {world_size} GPUs"
            return [Problem("global_batch_divisible", "global_batch_size", step, why)]
        if section == "sft":
            return []
        spec = SwiftBatchSpec(
            world_size=world_size,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            num_generations=trainer.num_generations,
            steps_per_generation=trainer.steps_per_generation * accumulation,
        )
        return errors_of(check_swift_batch(spec))
    parallel = Parallel() if tuner.parallel == "auto" else tuner.parallel
    layout = LayoutSpec(
        world_size,
        parallel.tensor,
        parallel.pipeline,
        parallel.context,
        parallel.expert,
        parallel.expert_tensor,
    )
    if section == "sft":
        return _without_grpo(BatchSpec(step, micro), layout)
    batch = BatchSpec(
        global_batch_size=step,
        micro_batch_size=micro,
        num_generations=trainer.num_generations,
        steps_per_generation=trainer.steps_per_generation,
        save_steps=trainer.save_steps if trainer.save_optimizer else None,
    )
    return errors_of(check_batch(batch, layout))


def to_megatron(source: Program, layout: LayoutSpec) -> BatchSpec:
    """The batch of Megatron at the same completions per step and per rollout as a swift command.

    Only the micro batch is free: the largest one, up to per_device_train_batch_size, that ms-swift accepts on
    the layout. Where none is, the given one is kept, and `problems_of` says what is refused.
    """
    spec, numbers = swift_spec(source), numbers_of(source)
    largest = spec.per_device_train_batch_size
    if numbers.rollout is None:
        dp_size = max(1, layout.dp_size)  # 0 where the layout needs more GPUs than there are
        sizes = [size for size in range(largest, 0, -1) if numbers.step % (size * dp_size) == 0]
        return BatchSpec(numbers.step, sizes[0] if sizes else largest)
    # a step cannot need more than one rollout here (megatron_args.py:272-289), nor a part of one
    steps = max(1, ceil(Fraction(numbers.rollout, numbers.step)))

    def batch(size: int, evaluates: bool) -> BatchSpec:
        return BatchSpec(
            global_batch_size=numbers.step,
            micro_batch_size=size,
            num_generations=spec.num_generations,
            steps_per_generation=steps,
            num_generations_eval=spec.num_generations_eval,
            evaluates=evaluates,
        )

    for evaluated in dict.fromkeys((spec.evaluates, False)):
        for size in range(largest, 0, -1):
            if not errors_of(check_batch(batch(size, evaluated), layout)):
                return batch(size, spec.evaluates)
    return batch(largest, spec.evaluates)


def to_swift(source: Program) -> SwiftBatchSpec:
    """The batch of the swift backend at the same completions per step and per rollout as a Megatron command.

    Every rank is a data-parallel rank there; without GRPO those that share sequences are one.
    The largest batch per rank up to micro_batch_size that divides the step is taken; if the step is no
    multiple of the ranks, it is rounded up to one.
    """
    spec, numbers, world_size = megatron_spec(source), numbers_of(source), world_size_of(source)
    ranks = world_size if is_grpo(source) else max(1, world_size // layout_of(source).cp)
    sizes = [size for size in range(spec.micro_batch_size, 0, -1) if numbers.step % (size * ranks) == 0]
    size = sizes[0] if sizes else 1
    accumulation = ceil(Fraction(numbers.step, size * ranks))
    generations = spec.num_generations_eval or spec.num_generations
    eval_unit = generations // gcd(generations, world_size)
    return SwiftBatchSpec(
        world_size=world_size,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        num_generations=spec.num_generations,
        steps_per_generation=(numbers.rollout or numbers.step) // numbers.step * accumulation,
        per_device_eval_batch_size=-(-size // eval_unit) * eval_unit,
        num_generations_eval=spec.num_generations_eval,
        evaluates=spec.evaluates,
    )
