"""The same completions and prompts per optimizer step and per rollout before and after, or a reason."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.train import Server, TrainPaths, train
from grpoflow.commands.tuning import accumulation_steps
from grpoflow.config import Config, load_experiments
from grpoflow.config.load import merge
from grpoflow.config.tuner import Parallel
from grpoflow.plan.inputs import sft_swift_ranks
from grpoflow.translate import Translation, translate_command, translate_to_config
from hypothesis import assume, given, settings
from hypothesis import strategies as st

# Written in other ways than the translation writes: the reader must not depend on its own style.
STYLES = (
    "export NPROC_PER_NODE={nproc} NNODES={nnodes}\n{program} rlhf {arguments}\n",
    "N={nproc}\nNPROC_PER_NODE=$N NNODES={nnodes} \\\n  {program} rlhf \\\n  {arguments}\n",
    "torchrun --nproc_per_node={nproc} --nnodes {nnodes} /x/swift/cli/{module}rlhf.py {arguments}\n",
)
COMMON = "--rlhf_type grpo --model ./m --dataset d.jsonl --val_dataset v.jsonl --eval_strategy no"
REST = "--vllm_mode server --vllm_server_host 10.0.0.1 --reward_funcs accuracy --num_train_epochs 1"
sizes = st.integers(1, 8)
worlds = st.tuples(st.integers(1, 8), st.integers(1, 3))


def script(style: str, program: str, world: tuple[int, int], arguments: dict[str, int]) -> str:
    common = COMMON if program == "swift" else COMMON.replace("--eval_strategy no", "--eval_iters 0")
    given = " ".join(f"--{name} {value}" for name, value in arguments.items())
    module = "" if program == "swift" else "_megatron/"
    text = f"{common} {given} {REST}"
    return style.format(nproc=world[0], nnodes=world[1], program=program, module=module, arguments=text)


def printed(text: str) -> dict[str, int]:
    """Numbers of a printed command, read without the reader under test."""
    words = shlex.split(text.replace("\\\n", " "))
    options = {word[2:]: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}
    variables = dict(re.findall(r"^(NPROC_PER_NODE|NNODES)=(\d+)", text, re.MULTILINE))
    return {name: int(value) for name, value in {**options, **variables}.items() if value.isdigit()}


def swift_numbers(numbers: dict[str, int]) -> tuple[int, int]:
    """(completions per step, per rollout): swift/rlhf_trainers/args_mixin.py:200-222."""
    ranks = numbers["NPROC_PER_NODE"] * numbers["NNODES"]
    accumulation = numbers["gradient_accumulation_steps"]
    per_pass = numbers["per_device_train_batch_size"] * ranks
    return per_pass * accumulation, per_pass * numbers.get("steps_per_generation", accumulation)


def megatron_numbers(numbers: dict[str, int]) -> tuple[int, int]:
    """(completions per step, per rollout): swift/megatron/arguments/megatron_args.py:272-289."""
    step = numbers["global_batch_size"]
    return step, step * numbers.get("steps_per_generation", 1)


def checked(translation: Translation) -> None:
    (batch,) = translation.batches
    assert batch.before is not None
    assert batch.after is not None
    assert batch.same == (not batch.why)
    assert (": the same before and after." in translation.to_text()) == batch.same


@st.composite
def swift_batches(draw: st.DrawFn) -> dict[str, int]:
    arguments = {
        "per_device_train_batch_size": draw(sizes),
        "gradient_accumulation_steps": draw(sizes),
        "num_generations": draw(st.sampled_from([2, 4, 8])),
    }
    if draw(st.booleans()):
        arguments["steps_per_generation"] = draw(st.integers(1, 24))
    if draw(st.booleans()):
        arguments["num_iterations"] = draw(st.integers(1, 2))
    return arguments


@given(st.sampled_from(STYLES), worlds, swift_batches())
@settings(max_examples=50, deadline=None)
def test_swift_to_megatron(style: str, world: tuple[int, int], arguments: dict[str, int]) -> None:
    text = script(style, "swift", world, arguments)
    translation = translate_command(text, "megatron")
    checked(translation)
    step, rollout = swift_numbers({**arguments, "NPROC_PER_NODE": world[0], "NNODES": world[1]})
    written = printed(translation.text)
    assert (translation.batches[0].before.step, translation.batches[0].before.rollout) == (step, rollout)
    assert written["global_batch_size"] == step
    assert written["num_generations"] == arguments["num_generations"]
    assert written["micro_batch_size"] <= arguments["per_device_train_batch_size"]
    once = arguments.get("num_iterations", 1) == 1
    assert translation.batches[0].same == (rollout % step == 0 and once)
    if rollout % step == 0:
        assert megatron_numbers(written) == (step, rollout)


@given(
    st.sampled_from(STYLES), worlds, sizes, st.integers(1, 200), st.integers(1, 4), st.sampled_from([1, 2, 4])
)
@settings(max_examples=50, deadline=None)
def test_megatron_to_swift(
    style: str, world: tuple[int, int], micro: int, step: int, rollout_steps: int, tp: int
) -> None:
    ranks = world[0] * world[1]
    assume(ranks % tp == 0)
    arguments = {
        "micro_batch_size": micro,
        "global_batch_size": step,
        "steps_per_generation": rollout_steps,
        "tensor_model_parallel_size": tp,
        "num_generations": 4,
    }
    translation = translate_command(script(style, "megatron", world, arguments), "swift")
    checked(translation)
    assert translation.batches[0].same == (step % ranks == 0)
    written = {"NPROC_PER_NODE": world[0], "NNODES": world[1], **printed(translation.text)}
    if step % ranks == 0:
        assert swift_numbers(written) == (step, step * rollout_steps)
    else:
        assert swift_numbers(written)[0] == -(-step // ranks) * ranks


@given(worlds, swift_batches())
@settings(max_examples=40, deadline=None)
def test_there_and_back(world: tuple[int, int], arguments: dict[str, int]) -> None:
    there = translate_command(script(STYLES[0], "swift", world, arguments), "megatron")
    assume(there.batches[0].same)
    back = translate_command(there.text, "swift")
    assert back.batches[0].same
    assert back.batches[0].after.same_training(there.batches[0].before)


def trained_numbers(config: Config) -> tuple[int, int]:
    """(completions per step, per rollout) of the command that the workflow starts."""
    ranks = Ranks(config.trainer.gpus or config.cluster.gpus_per_node, config.trainer.nodes)
    here = Path("x")
    parallel = config.trainer.parallel if isinstance(config.trainer.parallel, Parallel) else Parallel()
    command = train(config, TrainPaths(here, here, here, here), ranks, parallel, [Server("h", 1, 2)])
    numbers = printed(shlex.join(command.argv)) | {
        name: int(command.env[name]) for name in ("NPROC_PER_NODE", "NNODES")
    }
    return (swift_numbers if config.trainer.backend == "swift" else megatron_numbers)(numbers)


@given(st.sampled_from(STYLES), worlds, swift_batches())
@settings(max_examples=40, deadline=None)
def test_swift_to_config_and_to_both_backends(
    style: str, world: tuple[int, int], arguments: dict[str, int]
) -> None:
    translation = translate_to_config(script(style, "swift", world, arguments))
    checked(translation)
    raw = yaml.safe_load(translation.text)
    step, rollout = swift_numbers({**arguments, "NPROC_PER_NODE": world[0], "NNODES": world[1]})
    assert translation.batches[0].same == (rollout % step == 0)
    assume(rollout % step == 0)
    for backend in ("swift", "megatron"):
        config = load_experiments(merge(raw, {"trainer": {"backend": backend, "parallel": {"tensor": 1}}}))[
            "main"
        ]
        assert trained_numbers(config) == (step, rollout)
        assert config.trainer.num_generations == arguments["num_generations"]


@given(worlds, sizes, st.integers(1, 200), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_megatron_to_config(world: tuple[int, int], micro: int, step: int, rollout_steps: int) -> None:
    arguments = {"micro_batch_size": micro, "global_batch_size": step, "steps_per_generation": rollout_steps}
    translation = translate_to_config(script(STYLES[0], "megatron", world, arguments))
    assert translation.batches[0].same
    assert trained_numbers(load_experiments(yaml.safe_load(translation.text))["main"]) == (
        step,
        step * rollout_steps,
    )


def test_the_defaults_of_a_program_count() -> None:
    swift = translate_command(
        script(STYLES[0], "swift", (4, 1), {"per_device_train_batch_size": 2}), "megatron"
    )
    assert printed(swift.text)["global_batch_size"] == 8
    megatron = translate_command(script(STYLES[0], "megatron", (4, 1), {}), "swift")
    assert swift_numbers({"NNODES": 1, **printed(megatron.text)}) == (16, 16)
    # without GRPO the swift backend fills up to 16 (swift/trainers/arguments.py:289)
    sft = translate_command("NPROC_PER_NODE=4 swift sft --per_device_train_batch_size 2", "megatron")
    assert printed(sft.text)["global_batch_size"] == 16


def test_a_size_that_the_script_does_not_know_is_said() -> None:
    text = "NPROC_PER_NODE=$GPUS swift rlhf --rlhf_type grpo --gradient_accumulation_steps $GA"
    for translation in (translate_command(text, "megatron"), translate_to_config(text)):
        (batch,) = translation.batches
        assert batch.before is None
        assert not batch.same
        assert "$GPUS" in batch.why
        assert "$GA" in batch.why


def test_what_megatron_refuses_is_said_with_a_legal_value() -> None:
    arguments = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "num_generations": 8}
    translation = translate_command(script(STYLES[0], "swift", (8, 1), arguments), "megatron")
    assert translation.batches[0].same
    assert "num_rollout_prompt 1" in translation.problems[0]
    assert "Legal: 64" in translation.problems[0]
    assert "--tensor_model_parallel_size 8" in translation.problems[1]


def test_the_micro_batch_shrinks_until_megatron_takes_it() -> None:
    arguments = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 8}
    translation = translate_command(script(STYLES[0], "swift", (4, 1), arguments), "megatron")
    assert printed(translation.text)["micro_batch_size"] == 2
    assert not translation.problems


@pytest.mark.parametrize(("sharing", "step"), [(1, 32), (2, 16), (4, 8), (8, 4)])
def test_gpus_that_share_their_sequences_make_a_smaller_step_of_sft(sharing: int, step: int) -> None:
    arguments = "--per_device_train_batch_size 2 --gradient_accumulation_steps 2"
    text = f"NPROC_PER_NODE=8 swift sft {arguments} --sequence_parallel_size {sharing}"
    there = translate_command(text, "megatron")
    assert printed(there.text)["global_batch_size"] == step
    assert printed(there.text)["context_parallel_size"] == sharing
    assert there.batches[0].same
    back = translate_command(there.text, "swift")
    assert back.batches[0].same
    numbers = printed(back.text)
    ranks = 8 // numbers["sequence_parallel_size"]
    assert numbers["per_device_train_batch_size"] * numbers["gradient_accumulation_steps"] * ranks == step
    config = translate_to_config(text)
    assert config.batches[0].same
    assert config.batches[0].after.step == step
    sft = load_experiments(yaml.safe_load(config.text))["main"].sft
    assert sft is not None
    # what the stage computes from it: 2 accumulation steps, as in the script
    assert accumulation_steps(sft, sft_swift_ranks(sft, 8)) == 2


@pytest.mark.parametrize("sharing", [1, 2, 4])
def test_gpus_that_share_their_sequences_make_the_same_step_of_grpo(sharing: int) -> None:
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    text = script(STYLES[0], "swift", (8, 1), arguments | {"sequence_parallel_size": sharing})
    there = translate_command(text, "megatron")
    assert printed(there.text)["global_batch_size"] == 64
    assert translate_command(there.text, "swift").batches[0].same
    assert translate_to_config(text).batches[0].after.step == 64
