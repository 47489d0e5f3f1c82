"""The batch algebra against the released code: its methods are cut out of the ms-swift 4.6.0 source and run
here."""

import __future__

import ast
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpoflow.plan.batch import (
    BatchSpec,
    SwiftBatchSpec,
    check_batch,
    check_swift_batch,
    default_eval_iters,
    exact_eval_iters,
    resolve_batch,
    resolve_swift_batch,
    swift_train_steps,
    train_iters,
)
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.problem import PlanError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

VERSION = "4.6.0"
REPO = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def swift_source(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Reader of the sources of the released ms-swift: from the CPU environment if it is there, else from the
    wheel."""
    installed = [
        dist.parent
        for dist in REPO.glob(f".envs/*/lib/python*/site-packages/ms_swift-{VERSION}.dist-info")
        if (dist.parent / "swift").is_dir()
    ]
    if installed:
        return lambda path: (installed[0] / "swift" / path).read_text()
    cache = request.config.cache.mkdir(f"ms_swift_{VERSION}")
    if not list(cache.glob("*.whl")):
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--quiet",
            f"ms-swift=={VERSION}",
            "-d",
            cache,
        ]
        if subprocess.run(command, check=False).returncode:
            pytest.skip(f"ms-swift {VERSION} is neither installed in .envs nor downloadable")
    wheel = zipfile.ZipFile(next(cache.glob("*.whl")))
    return lambda path: wheel.read(f"swift/{path}").decode()


def cut(source: str, class_name: str, method: str, **stubs: Any) -> Callable[..., Any]:
    """One method of a class as a plain function, with ``stubs`` for the module globals that it uses."""
    tree = ast.parse(source)
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    function = next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == method)
    function.decorator_list = []
    module = ast.Module(body=[function], type_ignores=[])
    flags = __future__.annotations.compiler_flag
    namespace: dict[str, Any] = dict(stubs)
    exec(compile(module, method, "exec", flags=flags, dont_inherit=True), namespace)
    return namespace[method]  # type: ignore[no-any-return]


class Released:
    """The released `megatron rlhf` code, run on plain numbers. Each method returns None or the message it
    stops with."""

    def __init__(self, read: Callable[[str], str]) -> None:
        self.dp = self.group_size = 1
        arguments = read("megatron/arguments/megatron_args.py")
        trainer = read("megatron/trainers/grpo_trainer.py")
        mixin = "RLHFMegatronArgumentsMixin"
        self.resolve = cut(arguments, mixin, "resolve_generation_batch_size")
        self.validate = cut(arguments, mixin, "validate_batch_dp_alignment")
        self.init_distributed = cut(
            arguments, "MegatronArguments", "_init_distributed", initialize_megatron=lambda _: None
        )
        self.init_iters = cut(
            arguments, "MegatronArguments", "init_iters", mpu=self, logger=SimpleNamespace(info=print)
        )
        distributed = SimpleNamespace(get_rank=lambda **_: 0, get_world_size=lambda **_: self.group_size)
        self.num_iters = cut(trainer, "MegatronGRPOTrainer", "get_num_iters_per_step", mpu=self)
        self.local_batch = cut(
            trainer,
            "MegatronGRPOTrainer",
            "get_local_rollout_batch",
            torch=SimpleNamespace(distributed=distributed),
            deepcopy=lambda item: item,
        )
        self.sampler = cut(
            read("megatron/trainers/batch_sampler.py"),
            "MegatronPretrainingRandomSampler",
            "__iter__",
            torch=None,
        )

    def get_data_parallel_world_size(self) -> int:
        return self.dp

    def rollout(self, args: SimpleNamespace, layout: LayoutSpec, mode: str) -> None:
        """The path of `_build_rollout_buffer`, up to the assert on its size."""
        self.dp, self.group_size = layout.dp_size, layout.model_size
        trainer = SimpleNamespace(
            unwrapped_models=[SimpleNamespace(training=mode == "train")],
            generation_batch_size=args.generation_batch_size,
            global_batch_size=args.global_batch_size,
            num_generations=args.num_generations,
            num_generations_eval=args.num_generations_eval,
            micro_batch_size=args.micro_batch_size,
            steps_per_generation=args.steps_per_generation,
            per_device_generation_batch_size=args.generation_batch_size // layout.world_size,
            _get_rollout_group=lambda: None,
        )
        generations = args.num_generations if mode == "train" else args.num_generations_eval
        prompts = [0] * (self.num_iters(trainer) * args.micro_batch_size)
        self.local_batch(trainer, prompts)
        micro_batches = len(prompts) * generations // args.micro_batch_size
        steps = args.steps_per_generation if mode == "train" else 1
        assert micro_batches == steps * (args.global_batch_size // args.micro_batch_size // layout.dp_size)

    def stops(self, spec: BatchSpec, layout: LayoutSpec, consumed_steps: int | None = None) -> set[str]:
        """Stages at which the released code stops: ``resolve``, ``validate``, ``init``, ``train``, ``eval``,
        ``resume``."""
        stopped = set()

        def attempt(stage: str, call: Callable[[], Any]) -> Any:
            try:
                return call()
            except (ValueError, AssertionError, RuntimeError):
                stopped.add(stage)

        gbs, mbs, generations = spec.global_batch_size, spec.micro_batch_size, spec.num_generations
        args = SimpleNamespace(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            context_parallel_size=layout.cp,
            world_size=layout.world_size,
            global_batch_size=gbs,
            micro_batch_size=mbs,
            num_generations=generations,
            num_generations_eval=spec.num_generations_eval or generations,
        )
        attempt("init", lambda: self.init_distributed(args))
        resolved = attempt(
            "resolve",
            lambda: self.resolve(spec.generation_batch_size, spec.steps_per_generation, gbs, generations),
        )
        if resolved is None:
            return stopped
        args.generation_batch_size, args.steps_per_generation = resolved
        attempt(
            "validate",
            lambda: self.validate(resolved[0], generations, layout.dp_size, mbs, layout.world_size),
        )
        if not stopped:
            attempt("train", lambda: self.rollout(args, layout, "train"))
            if spec.evaluates:
                attempt("eval", lambda: self.rollout(args, layout, "eval"))
            if consumed_steps is not None:
                attempt("resume", lambda: self.resume(args, layout, consumed_steps))
        return stopped

    def resume(self, args: SimpleNamespace, layout: LayoutSpec, steps: int) -> None:
        """The consumed-sample tests of `_prepare_dataloader` and of the sampler."""
        consumed = steps * args.global_batch_size
        if consumed % args.num_generations:
            raise RuntimeError("consumed_train_samples must be divisible by num_generations")
        unit = args.micro_batch_size * layout.dp_size
        sampler = SimpleNamespace(
            total_samples=1000 * unit + 3,
            last_batch_size=3 % unit if unit > 1 else 0,
            consumed_samples=consumed // args.num_generations,
            micro_batch_size=args.micro_batch_size,
            micro_batch_times_data_parallel_size=unit,
            data_parallel_rank=0,
            data_parallel_size=layout.dp_size,
            shuffle=False,
        )
        if unit == 1:
            sampler.total_samples = 1000
        elif unit <= 3:
            sampler.total_samples, sampler.last_batch_size = 1000 * unit, 0
        next(self.sampler(sampler))


@pytest.fixture(scope="session")
def released(swift_source: Callable[[str], str]) -> Released:
    return Released(swift_source)


STAGE_OF_RULE = {
    "global_batch_divisible_by_micro_batch_dp": "init",
    "generation_batch_is_batch_times_steps": "resolve",
    "generation_batch_divisible_by_global_batch": "resolve",
    "generation_batch_divisible_by_num_generations": "resolve",
    "rollout_prompts_divisible_by_dp": "validate",
    "rollout_prompts_per_dp_divisible_by_micro_batch": "validate",
    "generation_batch_at_least_world_size": "validate",
    "generation_batch_divisible_by_world_size": "train",
    "eval_batch": "eval",
    "checkpoint_can_be_resumed": "resume",
}
"""At which stage the released code applies each rule; later stages are only reached when the earlier ones
pass."""

STAGES = ("init", "resolve", "validate", "train", "eval", "resume")


def expected_stops(spec: BatchSpec, layout: LayoutSpec) -> tuple[set[str], set[str]]:
    """(stages that our problems name, ids of the problems)."""
    ids = {problem.id for problem in check_batch(spec, layout) if problem.severity == "error"}
    return {STAGE_OF_RULE[id] for id in ids}, ids


layouts = st.builds(
    lambda tp, pp, cp, dp: LayoutSpec(tp * pp * cp * dp, tp, pp, cp),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 3, 4, 6, 8]),
)


@st.composite
def batch_cases(draw: st.DrawFn) -> tuple[LayoutSpec, list[BatchSpec]]:
    """A layout and 16 batches on it, most of them near a legal one."""
    layout = draw(layouts)
    mbs, generations = draw(st.sampled_from([1, 2, 3, 4])), draw(st.sampled_from([1, 2, 4, 6, 8]))
    eval_generations = draw(st.sampled_from([None, 1, 2, 4]))
    unit = draw(
        st.sampled_from([1, layout.dp_size, mbs * layout.dp_size, mbs * layout.dp_size * generations])
    )
    save_steps = draw(st.integers(1, 12))
    specs = []
    for factor in draw(st.lists(st.integers(1, 40), min_size=4, max_size=4)):
        gbs = unit * factor
        for steps in (1, draw(st.integers(1, 6))):
            base = BatchSpec(gbs, mbs, generations, None, steps, eval_generations, save_steps=save_steps)
            specs.append(replace(base, evaluates=True))
            offset = draw(st.sampled_from([0, 0, gbs, 1, generations]))
            given_steps = draw(st.sampled_from([None, steps]))
            specs.append(
                replace(base, steps_per_generation=given_steps, generation_batch_size=gbs * steps + offset)
            )
    return layout, specs


def test_agrees_with_the_released_code(released: Released) -> None:
    """On at least 20,000 batches, legal and not, the checks stop exactly where the released code stops."""
    seen: Counter[str] = Counter()

    @settings(max_examples=1300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(batch_cases())
    def compare(case: tuple[LayoutSpec, list[BatchSpec]]) -> None:
        layout, specs = case
        for spec in specs:
            stopped = released.stops(spec, layout, spec.save_steps)
            ours, ids = expected_stops(spec, layout)
            reached = stopped or {"none"}
            # The released code stops at the first stage; ours names all. Compare those the code got to.
            if stopped & {"init", "resolve", "validate"}:
                early = {"init", "resolve"} if "resolve" in stopped else {"init", "resolve", "validate"}
                assert ours & early == stopped, (layout, spec, stopped, ids)
            else:
                assert ours == stopped, (layout, spec, stopped, ids)
            seen.update(reached)
            seen["cases"] += 1

    compare()
    assert seen["cases"] >= 20_000
    assert min(seen[stage] for stage in (*STAGES, "none")) >= 100, f"a stage was hardly ever reached: {seen}"


@settings(max_examples=100, deadline=None, database=None)
@given(batch_cases())
def test_first_legal_values_lead_to_a_legal_batch(case: tuple[LayoutSpec, list[BatchSpec]]) -> None:
    layout, specs = case
    for spec in specs:
        current = spec
        for _ in range(5):
            fixable = [problem for problem in check_batch(current, layout) if problem.legal]
            if not fixable:
                break
            repair: dict[str, Any] = {fixable[0].key: fixable[0].legal[0]}
            current = replace(current, **repair)
        problems = check_batch(current, layout)
        # No legal value exists only where the person fixed a generation batch that nothing divides.
        assert not problems or all(not problem.legal for problem in problems), (spec, problems)
        if spec.generation_batch_size is None or spec.steps_per_generation is not None:
            assert not problems


@settings(max_examples=100, deadline=None, database=None)
@given(batch_cases(), st.integers(1, 5000), st.integers(1, 3), st.integers(1, 400))
def test_iterations_agree_with_the_released_code(
    released: Released, case: tuple[LayoutSpec, list[BatchSpec]], rows: int, epochs: int, val_rows: int
) -> None:
    layout, specs = case
    for spec in specs:
        try:
            batch = resolve_batch(spec, layout)
        except PlanError:
            continue
        args = SimpleNamespace(
            micro_batch_size=spec.micro_batch_size,
            rlhf_type="grpo",
            num_generations=spec.num_generations,
            save_strategy="steps",
            num_train_epochs=epochs,
            train_iters=None,
            eval_iters=-1,
            global_batch_size=spec.global_batch_size,
        )
        released.dp = layout.dp_size
        released.init_iters(args, range(rows), range(val_rows))
        assert train_iters(batch, rows, epochs) == args.train_iters
        assert default_eval_iters(batch, val_rows) == args.eval_iters


@settings(max_examples=500, deadline=None, database=None)
@given(
    st.builds(
        SwiftBatchSpec,
        world_size=st.sampled_from([1, 2, 3, 4, 6, 8, 16]),
        per_device_train_batch_size=st.integers(1, 8),
        gradient_accumulation_steps=st.integers(1, 8),
        num_generations=st.sampled_from([2, 3, 4, 8]),
        generation_batch_size=st.none() | st.integers(1, 256),
        steps_per_generation=st.none() | st.integers(1, 8),
        per_device_eval_batch_size=st.integers(1, 8),
        num_generations_eval=st.none() | st.sampled_from([1, 2, 4]),
        evaluates=st.booleans(),
    )
)
def test_swift_backend_agrees_with_the_released_code(
    swift_source: Callable[[str], str], spec: SwiftBatchSpec
) -> None:
    method = cut(
        swift_source("rlhf_trainers/args_mixin.py"),
        "RolloutTrainerArgumentsMixin",
        "_init_generation_batch_params",
    )
    args = SimpleNamespace(**vars(spec), eval_strategy="steps" if spec.evaluates else "no")
    try:
        method(args)
    except ValueError:
        assert check_swift_batch(spec)
        with pytest.raises(PlanError):
            resolve_swift_batch(spec)
        return
    assert check_swift_batch(spec) == []
    batch = resolve_swift_batch(spec)
    assert batch.generation_batch_size == args.generation_batch_size
    assert batch.steps_per_generation == args.steps_per_generation


OFFICIAL_SERVER_EXAMPLE = (
    BatchSpec(96, 4, 8, steps_per_generation=4),  # examples/megatron/grpo/dense_server.sh of ms-swift
    LayoutSpec(6),
)


def test_official_example_trains_but_cannot_evaluate() -> None:
    spec, layout = OFFICIAL_SERVER_EXAMPLE
    assert check_batch(spec, layout) == []
    problems = check_batch(replace(spec, evaluates=True), layout)
    assert [(problem.id, problem.key, problem.legal) for problem in problems] == [
        ("eval_batch", "global_batch_size", (192,))
    ]


def test_sizes_of_the_official_example() -> None:
    batch = resolve_batch(*OFFICIAL_SERVER_EXAMPLE)
    assert (batch.dp_size, batch.gradient_accumulation, batch.generation_batch_size) == (6, 4, 384)
    assert (batch.rollout_prompts, batch.train_prompts, batch.rollout_prompts_per_dp) == (48, 12, 8)
    # 96 / 8 = 12 prompts per step, 6 groups of 4 take 24 at once: only every second checkpoint can be resumed
    assert batch.resume_multiple == 2


def test_one_bad_batch_reports_every_broken_rule() -> None:
    problems = check_batch(
        BatchSpec(100, 3, 8, evaluates=True, save_steps=5), LayoutSpec(24, tp=2, pp=2, ep=8)
    )
    assert [problem.id for problem in problems] == [
        "world_size_fits_expert_layout",
        "global_batch_divisible_by_micro_batch_dp",
        "generation_batch_divisible_by_num_generations",
        "rollout_prompts_per_dp_divisible_by_micro_batch",
        "generation_batch_divisible_by_world_size",
        "eval_batch",
        "checkpoint_can_be_resumed",
    ]
    assert all(problem.legal for problem in problems)


def test_world_size_legal_value_satisfies_both_layouts() -> None:
    (problem,) = check_batch(BatchSpec(64), LayoutSpec(12, tp=8))
    assert problem.id == "world_size_fits_dense_layout"
    assert problem.legal == (16, 8)


def test_not_positive_stops_the_other_checks() -> None:
    problems = check_batch(BatchSpec(0, -1, 8), LayoutSpec(8))
    assert [problem.key for problem in problems] == ["global_batch_size", "micro_batch_size"]


def test_validation_set_that_would_be_dropped() -> None:
    spec = BatchSpec(64, 1, 8, evaluates=True, val_prompts=7)
    (problem,) = check_batch(spec, LayoutSpec(8))
    assert (problem.id, problem.severity, problem.legal) == ("val_set_is_used", "error", (8,))
    (problem,) = check_batch(replace(spec, val_prompts=20), LayoutSpec(8))
    assert (problem.id, problem.severity, problem.legal) == ("val_set_fixed", "warning", (24, 16))


def test_eval_iterations_with_fewer_generations_at_evaluation() -> None:
    spec = BatchSpec(128, 1, 8, num_generations_eval=2, evaluates=True, val_prompts=128)
    batch = resolve_batch(spec, LayoutSpec(8))
    assert default_eval_iters(batch, 128) == 8  # sees every prompt four times
    assert exact_eval_iters(batch, 128) == 2


def test_checkpoint_inside_a_rollout_is_a_warning() -> None:
    spec = BatchSpec(128, 1, 8, steps_per_generation=4, save_steps=50)
    (problem,) = check_batch(spec, LayoutSpec(16))
    assert (problem.id, problem.severity, problem.legal) == (
        "checkpoint_at_rollout_boundary",
        "warning",
        (52, 48),
    )


def test_steps_per_generation_counts_passes_in_the_swift_backend() -> None:
    batch = resolve_swift_batch(SwiftBatchSpec(8, 2, 4, steps_per_generation=8))
    assert (batch.global_batch_size, batch.generation_batch_size) == (64, 128)
    assert batch.updates_per_rollout == 2
    # 1000 prompts: 62 whole rollouts of 16 prompts, 8 passes each, 4 passes per update
    assert swift_train_steps(batch, 1000, 1) == 124


def test_swift_group_of_one_is_refused() -> None:
    (problem,) = check_swift_batch(SwiftBatchSpec(8, num_generations=1))
    assert (problem.id, problem.legal) == ("grpo_needs_a_group", (8, 4))


def test_plan_error_carries_every_problem() -> None:
    with pytest.raises(PlanError, match="positive_global_batch_size") as error:
        resolve_batch(BatchSpec(0, 0), LayoutSpec(8))
    assert len(error.value.problems) == 2
