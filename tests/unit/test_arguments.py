"""The argument catalogue: the data against what the released parser has, and the checks made with it."""

import json
import shlex
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from grpoflow.facts.arguments import (
    FACTS,
    ArgProblem,
    Catalogue,
    CatalogueError,
    argument_words,
    catalogued_versions,
    load_catalogue,
    renamed_arguments,
)
from grpoflow.facts.versions import VersionError, meets, parse_release

MAKE_CATALOGUE = Path(__file__).parents[2] / "scripts" / "make-arg-catalogue"
VERSIONS = ("4.0.4", "4.1.3", "4.2.3", "4.3.2", "4.4.2", "4.5.3", "4.6.0")


@pytest.fixture(scope="module")
def current() -> Catalogue:
    return load_catalogue("4.6.0")


def kinds(problems: list[ArgProblem]) -> list[tuple[str, str, str]]:
    return [(problem.severity, problem.kind, problem.argument) for problem in problems]


# ------------------------------------------------------------------------------------------
# The data


def test_every_release_is_catalogued_and_small() -> None:
    assert catalogued_versions() == VERSIONS
    assert sum(path.stat().st_size for path in (FACTS / "args").iterdir()) < 1_500_000


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("megatron export", 417),
        ("megatron rlhf", 414),
        ("megatron sft", 414),
        ("swift export", 127),
        ("swift infer", 153),
        ("swift rlhf", 481),
        ("swift rollout", 170),
        ("swift sft", 333),
    ],
)
def test_counts_are_those_of_the_real_parser(current: Catalogue, command: str, count: int) -> None:
    """Counts of HfArgumentParser over the installed dataclasses: ms-swift 4.6.0 with transformers 5.19.0."""
    assert len(current.arguments(command)) == count
    assert current.transformers == "5.19.0"


@pytest.mark.parametrize(
    ("command", "name", "type_", "nargs", "choices", "default"),
    [
        ("megatron rlhf", "micro_batch_size", "int", None, (), 1),
        ("megatron rlhf", "lr", "float", None, (), None),
        ("megatron rlhf", "rlhf_type", "str", None, ("dpo", "kto", "grpo", "gkd", "rm"), "dpo"),
        ("megatron rlhf", "use_vllm", "bool", "?", (), True),
        ("swift rlhf", "use_vllm", "bool", "?", (), False),
        ("megatron rlhf", "vllm_mode", "str", None, ("server", "colocate"), None),
        ("megatron rlhf", "sleep_level", "int", None, (0, 1, 2), 0),
        ("megatron rlhf", "vllm_server_port", "int", "+", (), [8000]),
        ("megatron rlhf", "reward_weights", "float", "+", (), None),
        # default 0. in the source, lost by the parser because it is a list argument with a plain default
        ("megatron rlhf", "moe_aux_loss_coeff", "float", "+", (), None),
        # Optional[Union[str, List[str]]]: one word
        ("megatron rlhf", "cp_comm_type", "str", None, (), None),
        (
            "megatron rlhf",
            "truncation_strategy",
            "str",
            None,
            ("delete", "left", "right", "split", None),
            None,
        ),
        ("swift rollout", "vllm_limit_mm_per_prompt", "json", None, (), None),
        ("swift sft", "gradient_checkpointing", "bool", "?", (), True),
        ("swift sft", "fp16", "bool", None, (), None),
        ("swift sft", "learning_rate", "float", None, (), None),
        ("swift sft", "parallelism_config", "unsettable", None, (), None),
        ("swift sft", "generation_config", "str", None, (), None),
        ("swift sft", "optim", "str", None, None, "<computed>"),
        ("swift infer", "infer_backend", "str", None, None, "transformers"),
    ],
)
def test_known_arguments(
    current: Catalogue,
    command: str,
    name: str,
    type_: str,
    nargs: str | None,
    choices: tuple[object, ...] | None,
    default: object,
) -> None:
    argument = current.arguments(command)[name]
    assert (argument.type, argument.nargs, argument.default) == (type_, nargs, default)
    if choices is not None:
        assert argument.choices == choices


def test_enum_choices_come_from_the_wheel(current: Catalogue) -> None:
    assert {"adamw_torch", "adamw_torch_fused", "adafactor"} <= set(
        map(str, current.arguments("swift sft")["optim"].choices)
    )
    assert set(current.arguments("swift infer")["infer_backend"].choices) == {
        "vllm",
        "transformers",
        "sglang",
        "lmdeploy",
        "pt",
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_all_bases_were_followed(version: str) -> None:
    assert not any(load_catalogue(version).unresolved.values())


@pytest.mark.parametrize(
    ("command", "name", "first", "last"),
    [
        ("megatron rlhf", "train_type", "4.0.4", "4.0.4"),
        ("swift rollout", "train_type", "4.0.4", "4.0.4"),
        ("megatron rlhf", "gradient_checkpointing_kwargs", "4.0.4", "4.0.4"),
        ("megatron rlhf", "tuner_type", "4.0.4", "4.6.0"),
        ("megatron rlhf", "mcore_model", "4.0.4", "4.6.0"),
        ("megatron rlhf", "router_replay_mode", "4.1.3", "4.6.0"),
        ("megatron rlhf", "vit_attn_impl", "4.1.3", "4.6.0"),
        ("megatron rlhf", "linear_decoupled_in_proj", "4.1.3", "4.6.0"),
        ("megatron rlhf", "vllm_enable_lora", "4.2.3", "4.6.0"),
        ("megatron rlhf", "real_tau", "4.2.3", "4.6.0"),
        ("megatron rlhf", "use_gym_env", "4.3.2", "4.6.0"),
        ("megatron rlhf", "language_model_only", "4.3.2", "4.6.0"),
        ("megatron rlhf", "megatron_extra_kwargs", "4.3.2", "4.6.0"),
        ("megatron rlhf", "teacher_kl_coef", "4.4.2", "4.6.0"),
        ("megatron rlhf", "nccl_comm_warmup", "4.4.2", "4.6.0"),
        ("megatron rlhf", "bridge_backend", "4.5.3", "4.6.0"),
        ("megatron export", "save_missing_weights", "4.5.3", "4.6.0"),
        ("megatron rlhf", "use_megatron_fsdp", "4.5.3", "4.6.0"),
        ("swift rlhf", "min_p", "4.5.3", "4.6.0"),
    ],
)
def test_arguments_appear_and_disappear_once(command: str, name: str, first: str, last: str) -> None:
    having = [version for version in VERSIONS if name in load_catalogue(version).arguments(command)]
    assert having == list(VERSIONS[VERSIONS.index(first) : VERSIONS.index(last) + 1])


@pytest.mark.parametrize("version", VERSIONS)
def test_no_release_has_a_3x_name_of_the_megatron_arguments(version: str) -> None:
    kept = {"train_type", "gradient_checkpointing_kwargs"} if version == "4.0.4" else set()
    catalogue = load_catalogue(version)
    for command in catalogue.commands:
        names = {rename.old for rename in renamed_arguments() if rename.concerns(command)}
        assert names & set(catalogue.arguments(command)) <= kept


def test_new_names_of_renamed_arguments_exist(current: Catalogue) -> None:
    for rename in renamed_arguments():
        if rename.new is not None:
            concerned = [command for command in current.commands if rename.concerns(command)]
            assert any(rename.new in current.arguments(command) for command in concerned), rename


# ------------------------------------------------------------------------------------------
# check: values from a YAML file


def test_good_values_pass(current: Catalogue) -> None:
    args = {
        "lr": 1e-6,
        "micro_batch_size": 1,
        "reward_funcs": ["accuracy", "format"],
        "reward_weights": [0.8, 0.2],
        "vllm_server_port": 8000,  # one value for a list argument
        "finetune": False,
        "vllm_limit_mm_per_prompt": {"image": 4},
        "megatron_extra_kwargs": '{"mtp_num_layers": 1}',
        "truncation_strategy": "None",
        "loss_type": "grpo",
        "output_dir": "results/run",
    }
    assert current.check("megatron rlhf", args) == []


@pytest.mark.parametrize(
    ("name", "value", "kind", "words"),
    [
        ("micro_batch_size", 2.5, "type", ["2.5", "int"]),
        ("micro_batch_size", "two", "type", ["two", "int"]),
        ("micro_batch_size", True, "type", ["int"]),
        ("lr", "1e-6x", "type", ["number"]),
        ("finetune", "perhaps", "type", ["perhaps", "true/false"]),
        ("vllm_mode", "remote", "choice", ["remote", "server", "colocate"]),
        ("sleep_level", 3, "choice", ["3", "0, 1, 2"]),
        ("micro_batch_size", [1, 2], "count", ["one int", "[1, 2]"]),
        ("reward_funcs", [], "count", ["needs a value"]),
        ("reward_weights", [0.5, "half"], "type", ["half", "number"]),
        ("lr", None, "type", ["None", "leave the key out"]),
        ("vllm_limit_mm_per_prompt", "{image: 4}", "type", ["JSON"]),
    ],
)
def test_wrong_values(current: Catalogue, name: str, value: object, kind: str, words: list[str]) -> None:
    (problem,) = current.check("megatron rlhf", {name: value})
    assert (problem.severity, problem.kind, problem.argument) == ("error", kind, name)
    assert all(word in problem.message for word in words)
    assert "megatron_args.py:" in problem.evidence


def test_choices_are_offered_as_legal_values(current: Catalogue) -> None:
    (problem,) = current.check("megatron rlhf", {"vllm_mode": "remote"})
    assert problem.legal == ("server", "colocate")


def test_argument_that_no_text_can_set(current: Catalogue) -> None:
    (problem,) = current.check("swift sft", {"parallelism_config": {"tp_size": 2}})
    assert (problem.severity, problem.kind) == ("error", "type")


def test_unknown_name_gets_the_nearest_ones(current: Catalogue) -> None:
    (problem,) = current.check("megatron rlhf", {"micro_batchsize": 1})
    assert (problem.severity, problem.kind) == ("error", "unknown")
    assert problem.legal[0] == "micro_batch_size"
    assert "micro_batch_size" in problem.message


def test_name_of_another_command_says_whose_it_is(current: Catalogue) -> None:
    (problem,) = current.check("megatron rlhf", {"per_device_train_batch_size": 1})
    assert "belongs to swift rlhf, swift sft" in problem.message
    assert problem.legal == ()


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("megatron rlhf", "load", "mcore_model"),
        ("megatron rlhf", "save", "output_dir"),
        ("megatron sft", "save_interval", "save_steps"),
        ("megatron rlhf", "ref_adapter_load", "mcore_ref_adapter"),
        ("megatron export", "adapter_load", "mcore_adapter"),
        ("swift rlhf", "train_type", "tuner_type"),
        ("megatron rlhf", "no_rope_fusion", "apply_rope_fusion"),
        ("swift sft", "metric", "eval_metric"),
    ],
)
def test_renamed_arguments_are_refused_with_the_new_name(
    current: Catalogue, command: str, old: str, new: str
) -> None:
    (problem,) = current.check(command, {old: "x"})
    assert (problem.severity, problem.kind, problem.legal) == ("error", "renamed", (new,))
    assert new in problem.message
    assert problem.evidence.startswith("3.12.6 ")


def test_removed_argument_is_refused(current: Catalogue) -> None:
    (problem,) = current.check("megatron rlhf", {"num_layers": 32})
    assert problem.kind == "renamed"
    assert problem.legal == ()
    assert "was removed" in problem.message
    assert "config.json" in problem.message


def test_rename_does_not_touch_other_programs(current: Catalogue) -> None:
    (problem,) = current.check("swift rlhf", {"save_interval": 10})
    assert problem.kind == "unknown"
    assert load_catalogue("4.0.4").check("megatron rlhf", {"train_type": "full"}) == []


def test_all_problems_at_once(current: Catalogue) -> None:
    args = {"load": "x", "vllm_mode": "remote", "lr": 1e-6, "micro_batch_size": "two"}
    assert [problem.argument for problem in current.check("megatron rlhf", args)] == [
        "load",
        "vllm_mode",
        "micro_batch_size",
    ]


def test_argument_of_some_transformers_releases_warns(current: Catalogue) -> None:
    (problem,) = current.check("swift sft", {"dataloader_in_order": False})
    assert (problem.severity, problem.kind) == ("warning", "release")
    assert "5.19.0" in problem.message


def test_unknown_command(current: Catalogue) -> None:
    with pytest.raises(CatalogueError, match="megatron rlhf"):
        current.check("megatron train", {})


# ------------------------------------------------------------------------------------------
# check_argv: command lines

ROLLOUT = """--model M --model_type qwen3_5 --template qwen3_5 --enable_thinking false --torch_dtype bfloat16
 --vllm_max_model_len 256 --vllm_enforce_eager true --vllm_max_num_seqs 64 --port 8123
 --vllm_limit_mm_per_prompt '{"image":0,"video":0}'"""
MEGATRON_GRPO = """--rlhf_type grpo --model M --model_type qwen3_5 --template qwen3_5
 --enable_thinking false --tuner_type full --torch_dtype float32 --bf16 false --fp16 false
 --dataset train.jsonl --split_dataset_ratio 0 --external_plugins plugin.py
 --reward_funcs tiny_accuracy tiny_format --reward_weights 1.0 0.2
 --use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1 --vllm_server_port 8123 --num_generations 8
 --micro_batch_size 8 --global_batch_size 64 --steps_per_generation 1 --max_completion_length 32
 --max_length 128 --temperature 1.0 --top_p 1.0 --top_k -1 --lr 1e-3 --lr_decay_style constant
 --lr_warmup_iters 0 --beta 0.0 --train_iters 40 --logging_steps 1 --save_steps 40 --output_dir OUT
 --add_version false --log_completions true --check_model false
 --ddp_backend gloo --attention_backend unfused --padding_free false
 --gradient_accumulation_fusion false --sequence_parallel false --recompute_granularity none
 --dataloader_num_workers 0 --dataset_num_proc 1"""
SWIFT_GRPO = """--rlhf_type grpo --model M --model_type qwen3_5 --template qwen3_5 --tuner_type full
 --torch_dtype float32 --dataset train.jsonl --split_dataset_ratio 0 --external_plugins plugin.py
 --reward_funcs tiny_accuracy tiny_format --reward_weights 1.0 0.2 --use_vllm false --num_generations 8
 --per_device_train_batch_size 64 --gradient_accumulation_steps 1 --max_completion_length 32 --max_length 128
 --temperature 1.0 --top_p 1.0 --top_k -1 --learning_rate 1e-3 --lr_scheduler_type constant --warmup_ratio 0
 --beta 0.0 --max_steps 100 --logging_steps 1 --save_steps 10 --save_total_limit 3 --output_dir OUT
 --add_version false --log_completions true --report_to tensorboard --gradient_checkpointing false
 --dataloader_num_workers 0 --dataset_num_proc 1 --seed 42 --check_model false"""
SWIFT_SFT = """--model M --model_type qwen3_5 --template qwen3_5 --enable_thinking false --tuner_type full
 --torch_dtype float32 --dataset train.jsonl --split_dataset_ratio 0 --output_dir OUT --add_version false
 --max_steps 45 --per_device_train_batch_size 64 --learning_rate 5e-3
 --lr_scheduler_type constant_with_warmup --warmup_steps 10 --adam_beta2 0.95 --check_model false
 --logging_steps 10 --save_steps 45 --max_length 128 --report_to tensorboard --dataloader_num_workers 0
 --gradient_checkpointing false"""
MEGATRON_SFT = """--model M --model_type qwen3_5 --template qwen3_5 --tuner_type full --torch_dtype float32
 --dataset train.jsonl --split_dataset_ratio 0 --output_dir OUT --add_version false --train_iters 10
 --micro_batch_size 8 --global_batch_size 16 --lr 5e-3 --logging_steps 1 --save_steps 10 --max_length 128
 --enable_thinking false --check_model false --ddp_backend gloo --attention_backend unfused
 --padding_free false --gradient_accumulation_fusion false --sequence_parallel false
 --recompute_granularity none --dataloader_num_workers 0 --dataset_num_proc 1"""
EXPORT_CACHE = """--to_cached_dataset true --template_mode train --remove_unused_columns false --model M
 --dataset train.jsonl --val_dataset val.jsonl --output_dir OUT --exist_ok true"""
EXPORT_MCORE = """--to_mcore true --model M --output_dir OUT --exist_ok true --torch_dtype bfloat16
 --tensor_model_parallel_size 2 --pipeline_model_parallel_size 4 --expert_model_parallel_size 8"""
INFER = """--model M --val_dataset val.jsonl --infer_backend vllm --vllm_tensor_parallel_size 2
 --max_new_tokens 64 --temperature 0 --enable_thinking false --result_path out.jsonl"""


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("swift rollout", ROLLOUT),
        ("megatron rlhf", MEGATRON_GRPO),
        ("swift rlhf", SWIFT_GRPO),
        ("swift sft", SWIFT_SFT),
        ("megatron sft", MEGATRON_SFT),
        ("swift export", EXPORT_CACHE),
        ("megatron export", EXPORT_MCORE),
        ("swift infer", INFER),
    ],
)
def test_command_lines_that_ran_pass(current: Catalogue, command: str, line: str) -> None:
    assert current.check_argv(command, shlex.split(line)) == []


@pytest.mark.parametrize(
    "line",
    [
        "--lr=1e-6",
        "--micro-batch-size 2",
        "--top_k -1",
        "--lr -.5",
        "--finetune",
        "--no_finetune",
        "--no-use-distributed-optimizer",
        "--no_bias_dropout_fusion",
        "--system '- be short'",
        "--lr 1e-6 --lr 2e-6",
    ],
)
def test_spellings_that_argparse_accepts(current: Catalogue, line: str) -> None:
    assert current.check_argv("megatron rlhf", shlex.split(line)) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--micro_batch_size", ("error", "count", "micro_batch_size")),
        ("--micro_batch_size 1 2", ("error", "count", "micro_batch_size")),
        ("--reward_funcs --lr 1e-6", ("error", "count", "reward_funcs")),
        ("stray --lr 1e-6", ("error", "count", "stray")),
        ("--no_finetune true", ("error", "count", "finetune")),
        ("--no_lr", ("error", "unknown", "no_lr")),
        ("--no_rope_fusion true", ("error", "renamed", "no_rope_fusion")),
        ("--micro_batch 1", ("error", "unknown", "micro_batch")),
        ("--lr -1e-3", ("error", "count", "lr")),
        ("--save_interval 10", ("error", "renamed", "save_interval")),
        ("run.yaml --lr 1e-6", ("warning", "unchecked", "run.yaml")),
    ],
)
def test_command_lines_with_a_mistake(current: Catalogue, line: str, expected: tuple[str, str, str]) -> None:
    assert kinds(current.check_argv("megatron rlhf", shlex.split(line)))[0] == expected


# ------------------------------------------------------------------------------------------
# Versions, words


def test_release_between_two_catalogues_uses_the_older_and_only_warns() -> None:
    catalogue = load_catalogue("4.4.3")
    assert (catalogue.version, catalogue.source_version) == ("4.4.3", "4.4.2")
    (problem,) = catalogue.check("megatron rlhf", {"bridge_backend": "megatron-bridge"})
    assert (problem.severity, problem.kind) == ("warning", "unknown")
    assert "4.4.3 was checked against 4.4.2" in problem.message
    (problem,) = catalogue.check("megatron rlhf", {"load": "x"})
    assert problem.severity == "error"


@pytest.mark.parametrize("version", ["3.12.6", "4.0.1"])
def test_release_older_than_every_catalogue(version: str) -> None:
    with pytest.raises(CatalogueError, match=r"4\.0\.4"):
        load_catalogue(version)


def test_not_a_version() -> None:
    with pytest.raises(VersionError, match="latest"):
        load_catalogue("latest")


def test_releases_are_compared_as_numbers() -> None:
    assert parse_release("4.10.0") > parse_release("4.9.3")
    assert parse_release("2.13.0+cpu") == parse_release("2.13")
    assert meets("5.16.1", ">=4.33,<5.20.0")
    assert not meets("5.20.0", ">=4.33,<5.20.0")
    assert meets("0.1", "")
    with pytest.raises(VersionError, match="~"):
        meets("1.0", "~=1.0")


def test_argument_words() -> None:
    assert argument_words(True) == ["true"]
    assert argument_words([1, 0.5, False]) == ["1", "0.5", "false"]
    assert json.loads(argument_words({"image": 4})[0]) == {"image": 4}
    with pytest.raises(TypeError):
        argument_words(None)


# ------------------------------------------------------------------------------------------
# The script that writes the catalogues


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("make_arg_catalogue", str(MAKE_CATALOGUE))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up there
    write_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = write_bytecode
    return module


def test_script_follows_python(script: ModuleType, tmp_path: Path) -> None:
    """Base order, re-exports, `try` imports, aliases, overrides, undecorated and unknown bases."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .child import Child\n"
    )
    (package / "base.py").write_text(
        "import enum\n"
        "from dataclasses import dataclass, field\n"
        "from typing import Dict, List, Literal, Optional, Union\n"
        "Text = Optional[Union[str, dict]]\n"
        "LIMIT = 7\n"
        "class Mode(str, enum.Enum):\n"
        "    FAST = 'fast'\n"
        "    SLOW = 'slow'\n"
        "class Plain:\n"
        "    not_a_field: int = 1\n"
        "@dataclass\n"
        "class Root:\n"
        "    shared: int = 1\n"
        "    hidden: int = field(default=0, init=False)\n"
        "@dataclass\n"
        "class Left(Root, Plain):\n"
        "    shared: float = 2.0\n"
        "    names: List[str] = field(default_factory=lambda: ['a'])\n"
        "@dataclass\n"
        "class Right(Root):\n"
        "    shared: str = 'right'\n"
        "    mode: Mode = Mode.FAST\n"
        "    size: Optional[Literal[1, 2]] = None\n"
        "    extra: Text = None\n"
        "    limit: int = LIMIT\n"
        "    table: Optional[Dict[str, int]] = None\n"
        "    flag: Optional[bool] = None\n"
    )
    (package / "child.py").write_text(
        "from dataclasses import dataclass\n"
        "try:\n    from missing import Left\nexcept ImportError:\n    from .base import Left\n"
        "from . import base as b\n"
        "from elsewhere import Unknown\n"
        "@dataclass\n"
        "class Child(Left, b.Right, Unknown):\n"
        "    on: bool = True\n"
    )
    entries, unresolved = script.read_command(script.Sources([tmp_path]), "pkg", "Child")
    assert {name: entry["type"] for name, entry in entries.items()} == {
        "shared": "float",
        "mode": "str",
        "size": "int",
        "extra": "json",
        "limit": "int",
        "table": "unsettable",
        "flag": "bool",
        "names": "str",
        "on": "bool",
    }
    assert entries["shared"]["default"] == 2.0
    assert entries["mode"]["choices"] == ["fast", "slow"]
    assert entries["size"] == {
        "name": "size",
        "type": "int",
        "optional": True,
        "choices": [1, 2],
        "default": None,
        "at": "pkg/base.py:23",
    }
    assert (entries["names"]["nargs"], entries["names"]["default"]) == ("+", ["a"])
    assert entries["limit"]["default"] == 7
    assert "nargs" not in entries["flag"]
    assert entries["on"]["nargs"] == "?"
    assert unresolved == ["pkg/child.py: base class Unknown of Child"]


def test_unresolved_base_turns_refusals_into_warnings(current: Catalogue) -> None:
    catalogue = Catalogue(
        version="4.6.0",
        source_version="4.6.0",
        warning="",
        transformers="5.19.0",
        transformers_examined=("5.19.0",),
        unresolved={"swift sft": ("x.py: base class B of C",)},
        _commands={"swift sft": current.arguments("swift sft")},
    )
    (problem,) = catalogue.check("swift sft", {"from_base_b": 1})
    assert problem.severity == "warning"
    assert "base class B" in problem.message


@pytest.mark.network
def test_catalogue_is_what_the_wheels_say(tmp_path: Path) -> None:
    name = "ms_swift-4.6.0.json"
    committed = (FACTS / "args" / name).read_bytes()
    (tmp_path / name).write_bytes(committed)  # gives the transformers release to use
    subprocess.run([sys.executable, str(MAKE_CATALOGUE), "4.6.0", "--out", str(tmp_path)], check=True)
    assert (tmp_path / name).read_bytes() == committed
