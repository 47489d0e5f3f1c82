"""Launch scripts of ms-swift as a configuration, and for the other backend."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml
from grpoflow.config import Config, load_experiments
from grpoflow.facts.arguments import Argument, argument_words, load_catalogue
from grpoflow.preflight.modelled import modelled_key
from grpoflow.translate import Note, Translation, main, translate_command, translate_to_config
from grpoflow.translate.batch import unknown_of, world_of
from grpoflow.translate.programs import TRAINERS, VERSION, read_source
from grpoflow.translate.slurm import count_of, megabytes_of, minutes_of
from hypothesis import given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parents[1]
CASES = TESTS / "data/public_cases"
GOLDEN = TESTS / "golden/translate"
CASE_NAMES = sorted(path.stem for path in CASES.glob("*.sh"))
CATALOGUE = load_catalogue(VERSION)


def translate(text: str, to: str) -> Translation:
    if to == "config":
        return translate_to_config(text)
    return translate_command(text, "megatron" if to == "megatron" else "swift")


def note(translation: Translation, parameter: str) -> Note:
    (found,) = [note for note in translation.notes if note.parameter == parameter]
    return found


def load(translation: Translation) -> Config:
    return load_experiments(yaml.safe_load(translation.text))["main"]


# --- the three public commands (modelscope/ms-swift#8289, #8145) ---


@pytest.mark.parametrize("to", ["config", "megatron", "swift"])
@pytest.mark.parametrize("case", CASE_NAMES)
def test_golden(case: str, to: str) -> None:
    """Rewrite them with GRPOFLOW_UPDATE_GOLDEN=1 and read the difference."""
    text = translate((CASES / f"{case}.sh").read_text(), to).to_text()
    path = GOLDEN / f"{case}.{'yaml' if to == 'config' else f'{to}.sh'}"
    if os.environ.get("GRPOFLOW_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("case", CASE_NAMES)
def test_public_configurations_are_legal_and_train_alike(case: str) -> None:
    translation = translate_to_config((CASES / f"{case}.sh").read_text())
    load(translation)
    assert not translation.problems
    assert all(batch.same for batch in translation.batches)
    # the report that follows is a comment: the printed text is the configuration
    assert yaml.safe_load(translation.to_text()) == yaml.safe_load(translation.text)


@pytest.mark.parametrize("to", ["megatron", "swift"])
@pytest.mark.parametrize("case", CASE_NAMES)
def test_public_commands_have_only_known_arguments(case: str, to: str) -> None:
    translation = translate((CASES / f"{case}.sh").read_text(), to)
    for program in read_source(translation.to_text()).programs:
        words = [
            word for given in program.given.values() for word in (f"--{given.name}", *given.text.split("\0"))
        ]
        assert program.backend == to or program.name == "swift rollout"
        assert not [p for p in CATALOGUE.check_argv(program.name, words) if p.kind == "unknown"]
        assert all(given.usable for given in program.given.values())


def test_the_9b_case() -> None:
    text = (CASES / "grpo_9b_swift_8289.sh").read_text()
    translation = translate_to_config(text)
    config = load(translation)
    assert (config.rollout.nodes, config.rollout.gpus, config.rollout.tensor_parallel_size) == (0, 2, 2)
    assert (config.trainer.nodes, config.trainer.gpus, config.cluster.gpus_per_node) == (1, 6, 8)
    assert (config.trainer.global_batch_size, config.trainer.micro_batch_size) == (192, 4)
    assert config.data.image_max_tokens == 1605632 // 1024
    assert config.trainer.args == {
        "warmup_ratio": 0.01,
        "dataloader_num_workers": 4,
        "attn_impl": "flash_attn",
    }
    assert "commented out" in note(translation, "`swift rollout`").why
    assert "144 GB" in note(translation, "--save_steps").why
    assert note(translation, "--eval_steps").outcome == "dropped"
    assert "4.3.0" in note(translation, "--add_non_thinking_prefix").why
    assert "4.3.0" in note(translation, "ms-swift").why
    assert "12192" in note(translation, "--max_length").why
    assert not translation.unread
    there = translate_command(text, "megatron")
    assert note(there, "--deepspeed").outcome == "needs a decision"
    assert [note(there, f"--{name}").outcome for name in ("use_vllm", "per_device_eval_batch_size")] == [
        "dropped"
    ] * 2


# --- nothing is lost ---


def example(argument: Argument, number: int) -> list[str]:
    """Command line words of an argument."""
    if argument.choices:
        return argument_words(next(choice for choice in argument.choices if choice is not None))
    examples: dict[str, object] = {
        "int": number,
        "float": number / 8,
        "bool": number % 2 == 0,
        "json": {"a": number},
    }
    return argument_words(examples.get(argument.type, "word"))


def some_arguments(program: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    names = [
        n for n, a in CATALOGUE.arguments(program).items() if a.type != "unsettable" and n != "rlhf_type"
    ]
    choice = st.tuples(st.sampled_from(names), st.integers(0, 9))
    return st.lists(choice, max_size=12, unique_by=lambda item: item[0])


@given(
    st.sampled_from((*TRAINERS, "swift rollout")).flatmap(
        lambda name: st.tuples(st.just(name), some_arguments(name))
    ),
    st.sampled_from(["config", "megatron", "swift"]),
)
@settings(max_examples=80, deadline=None)
def test_every_argument_has_exactly_one_note(case: tuple[str, list[tuple[str, int]]], to: str) -> None:
    program, arguments = case
    lines = [program]
    for name, number in arguments:
        lines.append(
            " ".join(
                [f"--{name}", *(f"'{word}'" for word in example(CATALOGUE.arguments(program)[name], number))]
            )
        )
    if program.endswith("rlhf"):
        lines.append("--rlhf_type grpo")
    translation = translate(" \\\n".join(lines), to)
    if to == "config" and program == "swift rollout":
        assert not translation.text
        return
    counted = Counter(note.parameter for note in translation.notes if note.line is not None)
    assert counted == Counter({line.split()[0]: 1 for line in lines[1:]})
    assert not translation.unread
    assert all(note.why or note.target for note in translation.notes)
    json.loads(translation.to_json())
    if to == "config":
        assert not refused_arguments(load(translation))


def refused_arguments(config: Config) -> list[str]:
    """Arguments in `args` that the preflight refuses, since a key of the configuration stands for them."""
    sections = {"trainer": config.trainer, "rollout": config.rollout, "sft": config.sft}
    given = [(name, key) for name, section in sections.items() if section for key in section.args]
    return [f"{section}.{name}" for section, name in given if modelled_key(name, section)]


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("--save_steps -1", "trainer.save_steps"),
        ("--num_generations 1", "trainer.num_generations"),
        ("--temperature 0", "rollout.temperature"),
        ("--warmup_steps -1", "trainer.warmup_steps"),
        ("--lr_scheduler_type polynomial", "trainer.lr_schedule"),
        ("--max_pixels 100", "data.image_max_tokens"),
        ("--loss_type bnpo --top_p 2", "rollout.top_p"),
        ("--dataset_num_proc 0", "data.num_proc"),
    ],
)
def test_what_the_configuration_refuses_is_left_out(given: str, target: str) -> None:
    translation = translate(f"swift rlhf --rlhf_type grpo --vllm_mode server {given}", "config")
    found = note(translation, f"--{given.rpartition('--')[2].split()[0]}")
    assert (found.outcome, found.target) == ("needs a decision", target)
    assert not refused_arguments(load(translation))


def test_what_is_not_understood_is_listed_by_line() -> None:
    text = (
        "source env.sh\nswift export --to_mcore true\nswift rlhf --rlhf_type grpo \\\n  --lerning_rate 1 \\\n"
        '  --lr_scheduler_type linear "$@"\npython train.py\nswift rlhf cfg.yaml --rlhf_type grpo\n'
    )
    listed = {item.first: item.why for item in translate(text, "megatron").unread}
    assert listed.keys() == {1, 2, 4, 5, 6, 7}
    assert "learning_rate" in listed[4]
    assert "more arguments" in listed[5]
    assert "not opened" in listed[7]


def test_an_argument_may_be_abbreviated() -> None:
    translation = translate(
        "swift rlhf --rlhf_type grpo --learning_r 1e-5 --num_gen 4 --vllm_mode server", "config"
    )
    assert load(translation).trainer.learning_rate == 1e-5
    assert note(translation, "--learning_r").outcome == "renamed"
    (item,) = translation.unread
    assert (item.text, item.why) == (
        "--num_gen 4",
        "ambiguous, which ms-swift refuses: num_generations, num_generations_eval",
    )


def test_home_and_names_of_files_stay_open(tmp_path: Path) -> None:
    text = (
        "M=~/m\nswift rlhf --rlhf_type grpo --vllm_mode server --model $M --dataset ~/data/*.jsonl 'b*' \\\n"
        "  --output_dir '~/out' --val_dataset a~b --target_regex .*q_proj --ref_model ~ --logging_dir x/~"
    )
    translation = translate(text, "swift")
    (tmp_path / "data").mkdir()
    for name in ("1.jsonl", "2 3.jsonl"):
        (tmp_path / "data" / name).touch()
    shell = "swift() { printf '%s\\0' \"$@\"; }\n" + translation.text
    done = subprocess.run(
        ["bash", "--norc", "-c", shell],
        capture_output=True,
        check=True,
        text=True,
        env={"HOME": str(tmp_path)},
    )
    words = done.stdout.split("\0")
    assert words[words.index("--model") + 1] == f"{tmp_path}/m"
    at = words.index("--dataset")
    assert words[at + 1 : at + 4] == [f"{tmp_path}/data/1.jsonl", f"{tmp_path}/data/2 3.jsonl", "b*"]
    for name, value in (
        ("output_dir", "~/out"),
        ("val_dataset", "a~b"),
        ("target_regex", ".*q_proj"),
        ("ref_model", str(tmp_path)),
        ("logging_dir", "x/~"),
    ):
        assert words[words.index(f"--{name}") + 1] == value
    config = translate(text, "config")
    assert load(config).model.path == "CHANGE-ME"
    assert "$HOME" in note(config, "--model").why
    assert note(translate("swift sft --dataset a/*.jsonl", "megatron"), "--dataset").why == (
        "* is for names of files that only a shell knows: put the value in"
    )


def test_a_pipeline_is_not_listed_as_its_first_command() -> None:
    translation = translate("swift rlhf --rlhf_type grpo --vllm_mode server \\\n 2>&1 | tee log", "config")
    (item,) = translation.unread
    assert (item.text, item.why) == ("tee log", "a copy of the output: not part of the translation")


@pytest.mark.parametrize("words", ["grpo.yaml", "--config grpo.yaml", "--config=grpo.yaml"])
def test_a_file_of_arguments_is_missing(words: str) -> None:
    translation = translate(f"swift rlhf {words} --beta 0", "config")
    (problem,) = translation.problems
    assert "the arguments in grpo.yaml are missing" in problem
    translation = translate(f"swift rlhf {words} --rlhf_type grpo --vllm_mode server", "config")
    assert "the arguments in grpo.yaml are missing" in translation.problems[0]
    assert not translation.batches[0].same
    translation = translate(f"swift rlhf {words} --beta 0", "megatron")
    assert "the arguments in grpo.yaml are missing" in translation.problems[0]
    assert not translation.batches[0].same


def test_a_reward_model_alone_is_said() -> None:
    translation = translate("swift rlhf --rlhf_type grpo --vllm_mode server --reward_model ./rm", "config")
    assert "a reward model only" in note(translation, "rewards.functions").why
    assert load(translation).trainer.args["reward_model"] == ["./rm"]


def test_prose_in_comments_is_no_command() -> None:
    prose = "# (swift rollout): start it first\n# use swift rlhf --x\n# swift sft is not needed\n"
    text = f"{prose}swift rlhf --rlhf_type grpo"
    assert [program.name for program in read_source(text).programs] == ["swift rlhf"]


def test_an_argument_given_twice() -> None:
    translation = translate("swift rlhf --rlhf_type grpo \\\n --beta 0.1 \\\n --beta 0.2", "config")
    assert load(translation).trainer.beta == 0.2
    first, second = [note for note in translation.notes if note.parameter == "--beta"]
    assert (first.line, first.outcome) == (2, "dropped")
    assert (second.line, second.outcome) == (3, "carried over")


def test_a_value_that_only_a_shell_knows_needs_a_decision() -> None:
    text = (
        "swift rlhf --rlhf_type grpo --beta $BETA --output_dir out/$(date) --model $M --dataset $D "
        "--vllm_mode server"
    )
    for to in ("config", "megatron"):
        translation = translate(text, to)
        assert note(translation, "--beta").outcome == "needs a decision"
        assert "$BETA" in note(translation, "--beta").why
    assert '--output_dir "out/$(date)"' in translation.text
    assert '--beta "$BETA"' in translation.text
    load(translate(text, "config"))


def test_a_value_that_is_not_legal_needs_a_decision() -> None:
    translation = translate("swift rlhf --rlhf_type grpo --beta much --num_generations 8 8", "config")
    assert "'much' is not float" in note(translation, "--beta").why
    assert note(translation, "--num_generations").outcome == "needs a decision"


# --- old names, other ways of writing ---


def test_names_of_release_3() -> None:
    text = (
        "megatron rlhf --rlhf_type grpo --load ./mcore --train_type full --save out --save_interval 20 "
        "--max_epochs 2 "
        "--log_interval 1 --no_bias_swiglu_fusion true --distributed_timeout_minutes 10 --num_layers 4 "
        "--use_flash_attn true --seq_length 4096"
    )
    translation = translate(text, "megatron")
    for line in (
        "--mcore_model ./mcore",
        "--tuner_type full",
        "--output_dir out",
        "--save_steps 20",
        "--num_train_epochs 2",
        "--logging_steps 1",
        "--bias_activation_fusion false",
        "--ddp_timeout 600",
        "--attention_backend flash",
        "--max_length 4096",
    ):
        assert f"    {line}" in translation.text
    assert note(translation, "--save_interval").outcome == "renamed"
    assert note(translation, "--num_layers").outcome == "dropped"
    assert not translation.unread
    config = load(translate(text, "config"))
    assert (config.trainer.tuner, config.trainer.save_steps, config.trainer.epochs) == ("full", 20, 2)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift rlhf {0}",
        "export NPROC_PER_NODE=2\nnohup swift rlhf {0} > log 2>&1 &",
        "torchrun --nproc-per-node 2 -m swift.cli.rlhf {0}",
        "python -m torch.distributed.run --nproc_per_node=2 /opt/swift/cli/rlhf.py {0}",
        "#SBATCH --gres=gpu:2\nNPROC_PER_NODE=$SLURM_GPUS_ON_NODE srun --mpi=none /env/bin/swift rlhf {0}",
        "env NPROC_PER_NODE=2 swift rlhf {0} | tee log",
        "ARGS=({0})\nNPROC_PER_NODE=2 swift rlhf ${{ARGS[@]}}",
        "bash -c 'NPROC_PER_NODE=2 swift rlhf {0}'",
        "[ -d x ] && NPROC_PER_NODE=2 swift rlhf {0}",
        "torchrun --nproc_per_node 2 $(which swift) rlhf {0}",
        "export NPROC_PER_NODE=2\npython `command -v swift` rlhf {0}",
        "export NPROC_PER_NODE=2\nray job submit --working-dir . -- swift rlhf {0}",
        "export NPROC_PER_NODE=2\nconda run -n swift --no-capture-output swift rlhf {0}",
        "docker run --gpus all -e NPROC_PER_NODE=2 -v /a:/b image swift rlhf {0}",
        "export NPROC_PER_NODE=2\napptainer exec --nv swift.sif swift rlhf {0}",
    ],
)
def test_ways_to_start_a_command(text: str) -> None:
    arguments = "--rlhf_type=grpo --per-device-train-batch-size 4 --no_gradient_checkpointing"
    (program,) = read_source(text.format(arguments)).programs
    assert program.name == "swift rlhf"
    assert program.env["NPROC_PER_NODE"].text == "2"
    assert {name: given.value for name, given in program.given.items()} == {
        "rlhf_type": "grpo",
        "per_device_train_batch_size": 4,
        "gradient_checkpointing": False,
    }


@pytest.mark.parametrize(
    ("text", "world"),
    [
        ("accelerate launch --num_processes 8 {0}", (8, 1)),
        ("accelerate launch --num-processes=8 --num_machines 2 --config_file a.yaml {0}", (4, 2)),
        ("accelerate launch --num_processes $N --num_machines 2 {0}", (None, 2)),
        ("accelerate launch --config_file a.yaml {0}", (None, 1)),
        ("deepspeed --num_gpus 8 --num_nodes=2 {0}", (8, 2)),
        ("deepspeed --include localhost:0,1,5 {0}", (3, 1)),
        ("deepspeed --include a:0,1@b:0 {0}", (None, 1)),
        ("deepspeed --hostfile hosts --num_gpus 4 {0}", (4, None)),
        ("deepspeed {0}", (None, 1)),
        ("mpirun -np 16 python {0}", (None, 1)),
        ("torchrun --nproc_per_node auto {0}", (None, 1)),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=8\nsrun python {0}", (8, 2)),
        ("#SBATCH -N 2\n#SBATCH -n 16\nsrun python {0}", (8, 2)),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=8\npython {0}", (1, 1)),
        ("#SBATCH -N 2\nsrun python {0}", (1, 1)),
        ("srun -N 3 --ntasks-per-node 4 bash -c 'RANK=$SLURM_PROCID python {0}'", (4, 3)),
        ("#SBATCH -N 2\n#SBATCH -n 16\nsrun -n 2 torchrun --nnodes 2 --nproc_per_node 8 {0}", (8, 2)),
        ("#SBATCH -N 3\nNNODES=$SLURM_NNODES srun -N 2 python {0}", (1, 3)),
        ("#SBATCH -N 3\nsrun -N 2 bash -c 'NNODES=$SLURM_NNODES python {0}'", (1, 2)),
        (
            "#SBATCH --gpus-per-node=8\n"
            "srun --gres=gpu:4 bash -c 'NPROC_PER_NODE=$SLURM_GPUS_ON_NODE python {0}'",
            (4, 1),
        ),
        (
            "#SBATCH --ntasks-per-node=1 --nodes=2 --gpus=16\nNNODES=$SLURM_NTASKS "
            "NPROC_PER_NODE=$((SLURM_GPUS / SLURM_NNODES)) python {0}",
            (8, 2),
        ),
    ],
)
def test_how_many_processes_a_launcher_starts(text: str, world: tuple[int | None, int | None]) -> None:
    (program,) = read_source(text.format("/opt/swift/cli/rlhf.py --rlhf_type grpo")).programs
    assert world_of(program) == world
    assert len(unknown_of(program)) == world.count(None)


def test_a_variable_that_is_not_exported_is_not_seen() -> None:
    translation = translate(
        "NPROC_PER_NODE=8\nswift rlhf --rlhf_type grpo --gradient_accumulation_steps 8", "config"
    )
    assert translation.batches[0].before.world_size == 1
    assert "without `export`" in note(translation, "NPROC_PER_NODE").why


def test_an_sbatch_script() -> None:
    text = (
        "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --gres=gpu:8\n#SBATCH -t 1-12:00:00\n"
        "#SBATCH -p a800\n#SBATCH -A lab\n"
        "#SBATCH --mem=512G\n#SBATCH --exclusive\n#SBATCH -J x\n"
        "export NNODES=2 NPROC_PER_NODE=$SLURM_GPUS_ON_NODE MASTER_ADDR=$(hostname)\n"
        "export NCCL_SOCKET_IFNAME=ib0\n"
        "srun megatron rlhf --rlhf_type grpo --model ./m --vllm_mode server --vllm_server_host node3 "
        "--global_batch_size 32"
    )
    translation = translate(text, "config")
    profile = {note.target for note in translation.notes if note.outcome == "profile"}
    assert {"runtime: 2160", "slurm_partition: a800", "slurm_account: lab", "mem_mb: 524288"} < profile
    assert 'slurm_extra: "--exclusive"' in profile
    config = load(translation)
    assert (config.trainer.nodes, config.rollout.nodes, config.cluster.gpus_per_node) == (2, 1, 8)
    assert config.cluster.env == {"NCCL_SOCKET_IFNAME": "ib0"}
    assert translate(text, "swift").text.startswith("#SBATCH --nodes=3\n")


def test_slurm_units() -> None:
    assert [minutes_of(text) for text in ("90", "1:30", "2:00:00", "1-0", "1-2:30", "x")] == [
        90,
        2,
        120,
        1440,
        1590,
        None,
    ]
    assert [count_of(text) for text in ("8", "gpu:8", "gpu:a800:8(S:0)", "2-4")] == [8, 8, 8, None]
    assert [megabytes_of(text) for text in ("512G", "1000", "2048K", "lots")] == [524288, 1000, 2, None]


def test_secrets_are_neither_read_nor_written() -> None:
    text = (
        "export WANDB_API_KEY=abc123\nwandb login abc123\nHF_TOKEN='abc123' IMAGE_MAX_TOKEN_NUM=1024 "
        "swift rlhf --rlhf_type grpo --hub_token abc123 --swanlab_token=abc123 --vllm_mode server"
    )
    for to in ("config", "megatron", "swift"):
        translation = translate(text, to)
        assert "abc123" not in translation.to_text() + translation.to_json()
        for name in ("WANDB_API_KEY", "HF_TOKEN"):
            assert note(translation, name).outcome == "dropped"
        for name in ("--hub_token", "--swanlab_token"):
            written = f"--{name[2:]} " in translation.text
            assert note(translation, name).outcome == ("needs a decision" if written else "dropped")
        assert ('--hub_token "${HUB_TOKEN:?}"' in translation.text) == (to != "config")
    assert load(translate(text, "config")).data.image_max_tokens == 1024


def test_a_value_with_a_secret_in_it_is_not_written() -> None:
    text = (
        "#SBATCH --export=ALL,WANDB_API_KEY=abc123\nTOK=abc123\nexport https_proxy=http://me:abc123@proxy:80\n"
        "swift rlhf --rlhf_type grpo --model https://me:abc123@host/m --hub_token $TOK --vllm_mode server "
        '--report_config \'{"api_key": "abc123"}\' --my_token "abc123" \\\n --dataset a.jsonl http://x:abc123@b'
    )
    for to in ("config", "megatron", "swift"):
        translation = translate(text, to)
        assert "abc123" not in translation.to_text() + translation.to_json()
        assert "***" not in translation.text
        assert note(translation, "https_proxy").outcome == "dropped"
        assert note(translation, "--model").outcome == "needs a decision"
        assert note(translation, "#SBATCH --export").outcome == "dropped"
    assert load(translate(text, "config")).model.path == "CHANGE-ME"
    assert '--model "${MODEL:?}"' in translate(text, "swift").text
    assert '--dataset a.jsonl "${DATASET:?}"' in translate(text, "megatron").text


@pytest.mark.parametrize(
    "login", ["echo abc123 | wandb login", "printf 'abc123' | x", "wandb login <<< abc123"]
)
def test_a_secret_on_its_way_to_a_login_is_not_shown(login: str) -> None:
    translation = translate(f"{login}\nswift rlhf --rlhf_type grpo --vllm_mode server", "config")
    assert "abc123" not in translation.to_text() + translation.to_json()
    assert translation.unread[0].first == 1


# --- nothing of a value is run or read as a key ---

LINES = "first\ntouch ran\r\x1b\x85\u2028key: value"


@pytest.mark.parametrize("to", ["config", "megatron", "swift"])
def test_values_of_several_lines_stay_values(to: str, tmp_path: Path) -> None:
    quoted = f"'{LINES}'"
    arguments = [
        "system",
        "beta",
        "neftune_noise_alpha",
        "dataset",
        "vllm_server_host",
        "lerning",
        "lr_scheduler_type",
    ]
    text = (
        f"export NOTE={quoted} ON=1\n"
        + "swift rlhf --rlhf_type grpo --vllm_mode server "
        + " ".join(f"--{name} {quoted}" for name in arguments)
        + f" | tee {quoted}\nexport MORE={quoted}\n[ $A = b ] && MORE={quoted}\necho {quoted}\n"
    )
    translation = translate(text, to)
    printed = translation.to_text()
    if to == "config":
        assert yaml.safe_load(printed) == yaml.safe_load(translation.text)
        config = load(translation)
        assert config.model.system == LINES
        assert config.cluster.env == {"NOTE": LINES, "ON": "1"}
        return
    shell = 'swift() { printf "%s\\0" "$NOTE" "$@"; }; megatron() { swift "$@"; }\n'
    done = subprocess.run(
        ["bash", "--norc", "-c", shell + printed], capture_output=True, check=True, cwd=tmp_path
    )
    assert not done.stderr
    assert not list(tmp_path.iterdir())
    words = done.stdout.decode().split("\0")
    assert words[0] == LINES
    assert words[words.index("--system") + 1] == LINES


# --- both commands, placements ---


def test_sft_and_grpo_in_one_script() -> None:
    text = (
        "NPROC_PER_NODE=8 swift sft --model ./base --dataset s.jsonl --output_dir out/sft --tuner_type full\n"
        "NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --model out/sft/checkpoint-9 --vllm_mode colocate\n"
    )
    translation = translate(text, "config")
    config = load(translation)
    assert config.model.path == "./base"
    assert config.sft is not None
    assert (config.sft.dataset, config.sft.backend, config.trainer.backend) == (
        "s.jsonl",
        "swift",
        "megatron",
    )
    assert config.rollout.mode == "colocate"
    assert [batch.command for batch in translation.batches] == ["megatron rlhf", "swift sft"]


@pytest.mark.parametrize(
    ("variables", "rollout", "expected"),
    [
        ("NPROC_PER_NODE=6 CUDA_VISIBLE_DEVICES=2,3,4,5,6,7", "", (0, 2, 6)),
        (
            "NPROC_PER_NODE=4",
            "swift rollout --vllm_data_parallel_size 2 --vllm_tensor_parallel_size 2\n",
            (0, 4, 4),
        ),
        ("NPROC_PER_NODE=8", "", (1, None, None)),
        ("NPROC_PER_NODE=8 NNODES=2", "", (1, None, None)),
    ],
)
def test_a_server_on_the_same_host(
    variables: str, rollout: str, expected: tuple[int, int | None, int | None]
) -> None:
    text = f"{rollout}{variables} swift rlhf --rlhf_type grpo --vllm_mode server --vllm_server_host 127.0.0.1"
    config = load(translate(text, "config"))
    assert (config.rollout.nodes, config.rollout.gpus, config.trainer.gpus) == expected


def test_servers_on_other_hosts() -> None:
    text = (
        "NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --vllm_mode server "
        "--vllm_server_base_url http://a:1 http://b:1"
    )
    assert load(translate(text, "config")).rollout.nodes == 2


def test_servers_on_hosts_that_only_slurm_knows() -> None:
    text = (
        "nodes=($(scontrol show hostnames))\nexport NODE_RANK=$SLURM_PROCID MASTER_ADDR=${nodes[1]}\n"
        "NPROC_PER_NODE=8 NNODES=4 megatron rlhf --rlhf_type grpo --vllm_mode server "
        "--vllm_server_host ${nodes[0]}"
    )
    translation = translate(text, "config")
    assert load(translation).rollout.nodes == 1
    assert "${nodes[0]}" in note(translation, "rollout.nodes").why
    command = translate(text, "swift")
    assert '--vllm_server_host "${nodes[0]}"' in command.text
    assert note(command, "NODE_RANK").outcome == "carried over"
    assert note(command, "MASTER_ADDR").outcome == "needs a decision"


def test_defaults_that_differ_are_written_out() -> None:
    config = load(translate("swift rlhf --rlhf_type grpo --vllm_mode server", "config"))
    assert (config.trainer.tuner, config.trainer.lora_rank, config.trainer.learning_rate) == ("lora", 8, 1e-4)
    assert (config.trainer.lr_schedule, config.trainer.epochs, config.rollout.temperature) == (
        "cosine",
        3,
        0.9,
    )
    assert (config.trainer.max_completion_length, config.data.truncation_strategy) == (512, "left")
    text = translate("swift rlhf --rlhf_type grpo --vllm_mode server", "megatron").text
    assert "--tuner_type lora" in text
    assert "--num_train_epochs 3" in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--warmup_steps 0.1", "--lr_warmup_fraction 0.1"),
        ("--warmup_steps 10", "--lr_warmup_iters 10"),
        ("--max_steps 100", "--train_iters 100"),
        (
            "--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr\": 1e-7}'",
            "--min_lr 1e-07",
        ),
        ("--gradient_checkpointing false", "--recompute_granularity none"),
        ("--save_only_model true", "--no_save_optim true"),
        ("--save_total_limit 1", "--save_total_limit 2"),
        ("--eval_strategy no", "--eval_iters 0"),
        ("--group_by_length true", "--padding_free false"),
        ("--sequence_parallel_size 2", "--context_parallel_size 2"),
        ("--attn_impl sdpa", "--attention_backend fused"),
    ],
)
def test_to_megatron_and_back(given: str, expected: str) -> None:
    there = translate(f"NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo {given}", "megatron")
    assert f"    {expected}" in there.text
    if given.startswith(("--save_total", "--group", "--warmup_steps 0", "--eval")):
        return
    back = translate(there.text, "swift").text.replace(" \\\n    ", " ")
    assert given.replace("1e-7", "1e-07") in back


@pytest.mark.parametrize(
    ("given", "there", "back"),
    [
        ("q_proj k_proj v_proj", "linear_qkv", "q_proj k_proj v_proj"),
        ("v_proj o_proj k_proj q_proj", "linear_qkv linear_proj", "q_proj k_proj v_proj o_proj"),
        ("gate_proj up_proj down_proj", "linear_fc1 linear_fc2", "gate_proj up_proj down_proj"),
        ("all-linear all-router", "all-linear all-router", "all-linear all-router"),
    ],
)
def test_modules_have_other_names_in_the_other_backend(given: str, there: str, back: str) -> None:
    megatron = translate(f"swift sft --target_modules {given} --modules_to_save lm_head", "megatron").text
    assert f"--target_modules {there} " in megatron
    assert "--modules_to_save output_layer " in megatron
    swift = translate(megatron, "swift").text
    assert f"--target_modules {back} " in swift
    assert "--modules_to_save lm_head " in swift


@pytest.mark.parametrize(
    ("program", "given", "why"),
    [
        ("swift", "--target_modules q_proj", "as one module, linear_qkv"),
        ("swift", "--target_modules all-linear in_proj_z", "not known by this name in Megatron: in_proj_z"),
        ("swift", "--target_regex .*q_proj", "names of modules"),
        ("swift", "--freeze_parameters model.visual", "names of modules"),
        ("megatron", "--target_modules linear_qkv in_proj", "not known by this name"),
        ("megatron", "--trainable_parameters decoder", "names of modules"),
    ],
)
def test_modules_that_the_other_backend_does_not_have_so(program: str, given: str, why: str) -> None:
    to = "megatron" if program == "swift" else "swift"
    translation = translate(f"{program} sft {given}", to)
    name = given.split(maxsplit=1)[0]
    assert note(translation, name).outcome == "needs a decision"
    assert why in note(translation, name).why
    assert name not in translation.text
    assert name in translate(f"{program} sft {given}", program).text.replace("\\", " ")


@pytest.mark.parametrize("name", ["save_steps", "eval_steps"])
def test_a_share_of_all_steps_is_no_number_of_steps(name: str) -> None:
    text = f"swift rlhf --rlhf_type grpo --{name} 0.1 --eval_strategy steps --vllm_mode server"
    there = translate(text, "megatron")
    assert note(there, f"--{name}").outcome == "needs a decision"
    assert f"--{name}" not in there.text
    assert "--eval_steps 50 " in translate(text.replace(f"{name} 0.1", "eval_steps 50.0"), "megatron").text
    config = translate(text, "config")
    if name == "save_steps":
        assert note(config, "--save_steps").outcome == "needs a decision"
    assert (
        load(config).trainer.save_steps
        == Config.model_fields["trainer"].annotation.model_fields["save_steps"].default
    )


@pytest.mark.parametrize("to", ["config", "megatron"])
def test_a_length_that_is_not_legal_is_not_dropped(to: str) -> None:
    translation = translate("swift rlhf --rlhf_type grpo --max_steps 1e3 --vllm_mode server", to)
    assert note(translation, "--max_steps").outcome == "needs a decision"
    assert "'1e3' is not int" in note(translation, "--max_steps").why
    if to == "config":
        load(translation)


def test_of_two_warmups_the_one_that_counts_is_kept() -> None:
    swift = "swift rlhf --rlhf_type grpo --warmup_ratio 0.05 --warmup_steps 10 --vllm_mode server"
    there = translate(swift, "megatron")
    assert "--lr_warmup_iters 10 " in there.text
    assert "--lr_warmup_fraction" not in there.text
    assert "refuses" in note(there, "--warmup_ratio").why
    config = load(translate(swift, "config"))
    assert (config.trainer.warmup_steps, config.trainer.args) == (10, {})
    megatron = (
        "megatron rlhf --rlhf_type grpo --lr_warmup_fraction 0.05 --lr_warmup_iters 10 --vllm_mode server"
    )
    back = translate(megatron, "swift")
    assert "--warmup_ratio 0.05 " in back.text
    assert "--warmup_steps" not in back.text
    config = load(translate(megatron, "config"))
    assert (config.trainer.warmup_steps, config.trainer.args) == (0, {"lr_warmup_fraction": 0.05})


@pytest.mark.parametrize(
    ("given", "outcome", "why"),
    [
        ("--move_model_batches 4", "dropped", "nothing in Megatron-SWIFT reads it"),
        ("--deepspeed zero2", "dropped", "DeepSpeed belongs to the swift backend"),
        ("--reward_model ./rm", "needs a decision", "this part of the reward would be missing"),
        ("--num_iterations 2", "needs a decision", "uses each rollout once"),
        ("--async_generate true", "needs a decision", "not supported"),
        ("--use_vllm false", "needs a decision", "vLLM only"),
        ("--num_train_epochs 0.5", "needs a decision", "whole epochs"),
        ("--resume_from_checkpoint c", "needs a decision", "no Megatron optimizer"),
        ("--neftune_noise_alpha 5", "needs a decision", "nothing takes its place"),
        ("--lr_scheduler_type polynomial", "needs a decision", "WSD"),
        ("--optim adamw_torch_fused", "dropped", "AdamW"),
        ("--log_level passive", "dropped", "default"),
    ],
)
def test_what_megatron_does_not_do(given: str, outcome: str, why: str) -> None:
    found = note(translate(f"swift rlhf --rlhf_type grpo {given}", "megatron"), given.split(maxsplit=1)[0])
    assert found.outcome == outcome
    assert why in found.why


def test_a_release_that_the_script_names() -> None:
    text = "pip install ms-swift==4.3.1\nmegatron rlhf --rlhf_type grpo --vllm_mode server"
    found = note(translate(text, "config"), "ms-swift")
    assert found.value == "4.3.1"
    assert "before 4.6.0" in found.why
    assert "before 4.1.1" not in found.why


# --- the command line ---


def test_main(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --vllm_mode server")
    assert main(script, None, "text") == 0
    assert load_experiments(yaml.safe_load(capsys.readouterr().out))
    assert main(script, "megatron", "json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["text"].splitlines()[1] == "megatron rlhf \\"
    assert value["batches"][0]["same"]
    assert value["batches"][0]["after"]["prompts_per_step"] == 0.25
    assert {note["outcome"] for note in value["notes"]} >= {"default", "carried over"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no GRPO or SFT command"),
        ("echo hello", "no GRPO or SFT command"),
        ("swift rlhf --rlhf_type dpo", "grpoflow trains with GRPO only"),
        ("A=(--rlhf_type grpo\nswift rlhf ${A[@]}", "line 1: A=(--rlhf_type grpo: the parenthesis"),
    ],
)
def test_main_without_anything_to_translate(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(text)
    assert main(script, "config", "text") == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert why in error
    assert main(tmp_path / "missing.sh", None, "text") == 1
