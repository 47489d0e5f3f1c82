"""Reading a configuration: every fault at once, with its key, value and a legal value."""

import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from configurations import config
from grpoflow.config import Config, ConfigError, load_experiments, read_yaml
from grpoflow.config.base import Section, convergence, keys_of_kind
from grpoflow.config.document import keys
from grpoflow.config.identity import dataset_id, mcore_id, run_hash, sft_data_id, sft_id
from grpoflow.config.load import OTHER_NAMES, Problem, merge
from grpoflow.config.tuner import Parallel

ROOT = Path(__file__).parents[2]


def problems(*overlays: dict[str, Any]) -> list[Problem]:
    with pytest.raises(ConfigError) as refused:
        load_experiments(config(*overlays))
    return refused.value.problems


def test_default_validates() -> None:
    assert list(load_experiments(read_yaml(ROOT / "config/config.yaml"))) == ["main"]


def test_default_holds_no_key_that_says_the_default() -> None:
    raw = read_yaml(ROOT / "config/config.yaml")
    (found,) = load_experiments(raw).values()
    assert _restated(raw, type(found), "") == []


def _restated(raw: dict[str, Any], section: Any, path: str) -> list[str]:
    restated = []
    for name, value in raw.items():
        field = section.model_fields[name]
        inner = [
            kind
            for kind in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if _is_section(kind)
        ]
        if isinstance(value, dict) and inner:
            restated += _restated(value, inner[0], f"{path}{name}.")
        elif not field.is_required() and field.get_default(call_default_factory=True) == value:
            restated.append(f"{path}{name}")
    return restated


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_fields")


@pytest.mark.parametrize(
    ("overlay", "key", "value", "legal"),
    [
        ({"trainer": {"bata": 0.1}}, "trainer.bata", 0.1, "beta"),
        ({"tranier": {}}, "tranier", {}, "trainer"),
        ({"data": {"train": ""}}, "data.train", "", "a text as config/README.md describes it"),
        ({"rewards": {"plugin": " "}}, "rewards.plugin", " ", "null"),
        ({"rewards": {"functions": ["a", "b", "a"]}}, "rewards.functions", ["a", "b", "a"], "['a', 'b']"),
        ({"trainer": {"lr": 1.0}}, "trainer.lr", 1.0, "learning_rate"),
        ({"trainer": {"tp": 4}}, "trainer.tp", 4, "parallel.tensor"),
        ({"rollout": {"tp": 4}}, "rollout.tp", 4, "tensor_parallel_size"),
        ({"trainer": {"train_iters": 4}}, "trainer.train_iters", 4, "train_steps"),
        ({"trainer": {"parallel": {"tensr": 2}}}, "trainer.parallel.tensr", 2, "tensor"),
        ({"trainer": {"parallel": {"tensor": 0}}}, "trainer.parallel.tensor", 0, "> 0"),
        ({"trainer": {"parallel": "aut"}}, "trainer.parallel", "aut", "a mapping of keys or 'auto'"),
        ({"trainer": {"backend": "fsdp"}}, "trainer.backend", "fsdp", "'megatron' or 'swift'"),
        ({"rollout": {"gpu_memory_utilization": 1.0}}, "rollout.gpu_memory_utilization", 1.0, "< 1.0"),
        ({"tracking": {"report_to": []}}, "tracking.report_to", [], "at least 1"),
        ({"trainer": {"save_steps": 2.5}}, "trainer.save_steps", 2.5, "an integer"),
        ({"trainer": {"epochs": 2}}, "trainer.epochs", 2, "train_steps: null, or epochs: null"),
        ({"rollout": {"nodes": 0}}, "rollout.gpus", None, "1 to 7"),
        ({"rollout": {"gpus": 2}}, "rollout.gpus", 2, "null"),
        (
            {"rollout": {"nodes": 0}, "cluster": {"gpus_per_node": 1}},
            "rollout.nodes",
            0,
            "1, or rollout.mode: colocate",
        ),
        ({"rollout": {"nodes": 0, "gpus": 2}, "trainer": {"nodes": 2}}, "trainer.nodes", 2, "1"),
        ({"rewards": {"weights": [1.0]}}, "rewards.weights", [1.0], "[1.0, 1.0]"),
        ({"model": {"path": None}}, "model.path", None, "text"),
    ],
)
def test_a_fault_names_key_value_and_legal_value(
    overlay: dict[str, Any], key: str, value: Any, legal: str
) -> None:
    (problem,) = problems(overlay)
    assert (problem.key, problem.value, problem.legal) == (key, value, legal)


def test_other_names_lead_to_keys_that_there_are() -> None:
    sections = [key.section for key in keys(Config) if key.section is not None]
    for name, meant in OTHER_NAMES.items():
        for key in meant:
            head, _, tail = key.partition(".")
            homes = [section for section in sections if head in section.model_fields]
            assert homes, key
            assert any(name not in section.model_fields for section in homes), name
            assert not tail or tail in Parallel.model_fields, key


def test_sections_that_disagree_are_all_named() -> None:
    overlay = {"data": {"grpo_cached": True}, "export": {"lora": "adapter"}, "rollout": {"nodes": 0}}
    found = problems(overlay, {"trainer": {"backend": "swift", "nodes": 2}})
    assert [problem.key for problem in found] == [
        "data.grpo_cached",
        "export.lora",
        "rollout.gpus",
        "trainer.nodes",
    ]
    assert all(problem.legal and "{" not in problem.why for problem in found)


def test_all_faults_of_all_experiments_come_at_once() -> None:
    found = problems(
        {"experiments": {"a": {"trainer": {"beta": -1}}, "b": {"model": {"pth": 1}}, "shared": {}, "x y": {}}}
    )
    assert [(p.experiment, p.key) for p in found] == [
        ("a", "trainer.beta"),
        ("b", "model.pth"),
        ("shared", "experiments"),
        ("x y", "experiments"),
    ]


def test_a_missing_key_says_what_it_is_for() -> None:
    raw = config()
    del raw["trainer"]["learning_rate"]
    with pytest.raises(ConfigError) as refused:
        load_experiments(raw)
    (problem,) = refused.value.problems
    assert (problem.id, problem.key) == ("required_key", "trainer.learning_rate")
    assert "Peak learning rate" in problem.why


def test_secrets_are_refused_and_not_shown() -> None:
    found = problems({"cluster": {"env": {"WANDB_API_KEY": "s3cr3t"}, "api_key": "s3cr3t"}})
    assert len(found) == 2
    assert "s3cr3t" not in "".join(map(str, found))


@pytest.mark.parametrize(
    ("overlay", "name"),
    [
        ({"cluster": {"env": {"OPENAI_APIKEY": "s3cr3t"}}}, "OPENAI_APIKEY"),
        ({"cluster": {"env": {"PGPASSWORD": "s3cr3t"}}}, "PGPASSWORD"),
        ({"trainer": {"args": {"hub_token": "s3cr3t"}}}, "hub_token"),
        ({"rollout": {"args": {"api_key": "s3cr3t"}}}, "api_key"),
        ({"rollout": {"engine_args": {"load_format": {"hf_token": "s3cr3t"}}}}, "hf_token"),
        (
            {"evaluate": {"benchmarks": {"datasets": ["x"], "args": {"judge": [{"apiKey": "s3"}]}}}},
            "apiKey",
        ),
    ],
)
def test_secrets_are_refused_wherever_they_are(overlay: dict[str, Any], name: str) -> None:
    """Arguments are seen in the list of processes by every user of a node."""
    (found,) = problems(overlay)
    assert found.key.endswith(f".{name}")
    assert "looks like a secret" in found.why
    assert found.legal
    assert "s3" not in str(found)


def test_what_only_sounds_like_a_secret_is_an_argument() -> None:
    args = {"moe_token_drop_policy": "probs", "apply_query_key_layer_scaling": True, "hub_token": None}
    overlay = {"trainer": {"args": args}, "cluster": {"env": {"VIDEO_MAX_TOKEN_NUM": "64"}}}
    assert load_experiments(config(overlay))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_number_is_finite(value: float) -> None:
    (found,) = problems({"trainer": {"learning_rate": value}})
    assert (found.key, found.why) == ("trainer.learning_rate", "must be a finite number")


@pytest.mark.parametrize("content", [b"model: {path: \xff}", b"data: 2024-13-45", b"a: [", b"[]"])
def test_a_file_that_is_no_configuration(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        read_yaml(tmp_path / "mine.yaml")


def test_keys_that_are_given_twice_are_named_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "trainer:\n  seed: 1\n  args: {a: [{b: 1, b: 2}]}\n  seed: 2\nmodel: {path: m}\ntrainer: {}\n"
        "defaults: &d {x: 1}\nsft: {<<: *d, x: 2}\n"  # laid over an alias: not twice
    )
    with pytest.raises(ConfigError) as refused:
        read_yaml(path)
    found = {
        problem.key: (problem.value, problem.why.partition(":")[0]) for problem in refused.value.problems
    }
    assert found == {
        "trainer": (str(path), "given in lines 1 and 6"),
        "trainer.seed": (str(path), "given in lines 2 and 4"),
        "trainer.args.a[0].b": (str(path), "given in lines 3 and 3"),
    }
    path.write_text("trainer: &t\n  args: {x: *t}\n")
    with pytest.raises(ConfigError, match=r"trainer\.args\.x .* holds itself"):
        read_yaml(path)


@pytest.mark.parametrize("value", [date(2024, 1, 2), {"a": {date(2024, 1, 2): 1}}, [math.inf], {1, 2}])
def test_an_argument_is_what_a_command_line_can_say(value: Any) -> None:
    for section, name in (("trainer", "args"), ("rollout", "engine_args"), ("rollout", "args")):
        (found,) = problems({section: {name: {"x": value}}})
        assert (found.id, found.key) == ("legal_value", f"{section}.{name}.x")


@pytest.mark.parametrize("overlay", [{"data": {3: 4}}, {3: {}}, {"trainer": {"args": {3: 4}}}])
def test_the_name_of_a_key_is_text(overlay: dict[Any, Any]) -> None:
    (found,) = problems(overlay)
    assert found.key.rpartition(".")[2] == "3"
    assert "must be text" in found.why


def test_text_of_numbers_is_read() -> None:
    """Snakemake gives everything inside of --config trainer='{...}' as text, YAML 1.1 gives 1e-6 as text."""
    given = {
        "train_steps": "null",
        "epochs": "2",
        "learning_rate": "1e-6",
        "overlong_filter": "true",
        "save_steps": "10",
    }
    trainer = load_experiments(config({"trainer": given}))["main"].trainer
    assert (trainer.train_steps, trainer.epochs, trainer.learning_rate) == (None, 2, 1e-6)
    assert (trainer.overlong_filter, trainer.save_steps) == (True, 10)


def test_merge_replaces_values_and_descends_into_mappings() -> None:
    assert merge({"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"c": [2]}, "d": None}) == {
        "a": {"b": 1, "c": [2]},
        "d": None,
    }


def test_execution_keys_leave_the_identity_alone() -> None:
    def identity(**overlay: Any) -> str:
        return run_hash(load_experiments(config(overlay))["main"])

    same = identity()
    assert identity(rollout={"nodes": 2}, cluster={"first_port": 3000}) == same
    assert identity(preflight={"suppress": {"eval_batch": "why"}}) == same
    assert identity(trainer={"parallel": {"tensor": 4}}) == same
    assert identity(trainer={"seed": 1}) != same


IDENTITIES = {
    "run": "0eef483db827",
    "dataset": "69f7df6c4f03",
    "sft_data": "af1c27e9e8b1",
    "sft": "87c35425ba40",
    "mcore": "87c35425ba40",
}
"""Of BASE with an sft section. A key of a later release leaves them as they are (`convergence(later=True)`):
what was begun or made before goes on under its name."""


SFT = {"dataset": "s.jsonl", "global_batch_size": 8, "learning_rate": 1.0e-5, "epochs": 1}


def identities(**overlay: Any) -> dict[str, str]:
    found = load_experiments(config({"sft": SFT}, overlay))["main"]
    return {
        "run": run_hash(found),
        "dataset": dataset_id(found),
        "sft_data": sft_data_id(found),
        "sft": sft_id(found),
        "mcore": mcore_id(found),
    }


def test_runs_of_earlier_releases_keep_their_identity() -> None:
    assert identities() == IDENTITIES


@pytest.mark.parametrize(
    ("overlay", "changed"),
    [
        ({"rewards": {"weights": [1.0, 0.1]}}, {"run", "dataset"}),
        ({"rewards": {"functions": ["accuracy"]}}, {"run", "dataset"}),
        ({"data": {"train": "more.jsonl"}}, {"run", "dataset"}),
        ({"data": {"max_length": 512}}, {"run", "dataset"}),
        # a held-out prompt must not be in the conversations
        ({"data": {"val": "other.jsonl"}}, {"run", "dataset", "sft_data", "sft", "mcore"}),
        ({"data": {"image_max_tokens": 64}}, {"run", "dataset", "sft_data", "sft", "mcore"}),
        # longer ones are dropped
        ({"sft": {"max_length": 512}}, {"run", "sft_data", "sft", "mcore"}),
        ({"sft": {"dataset": "other.jsonl"}}, {"run", "sft_data", "sft", "mcore"}),
        ({"sft": {"learning_rate": 1.0e-6}}, {"run", "sft", "mcore"}),
        ({"trainer": {"learning_rate": 1.0e-7}}, {"run"}),
        # what was not converted is no converted checkpoint
        ({"convert": {"mode": "direct"}}, {"mcore"}),
        ({"rollout": {"nodes": 2}}, set()),
    ],
)
def test_a_key_changes_what_depends_on_it_and_nothing_else(
    overlay: dict[str, Any], changed: set[str]
) -> None:
    before, after = identities(), identities(**overlay)
    assert {name for name in before if before[name] != after[name]} == changed


def test_a_later_key_counts_where_it_says_something_new() -> None:
    class Now(Section):
        old: int = convergence(1)
        new: int = convergence(0, later=True)

    class Then(Section):
        old: int = convergence(1)

    def identity(section: Section) -> dict[str, Any]:
        return keys_of_kind(section, "convergence", later_defaults=False)

    assert identity(Now()) == identity(Then()) == {"old": 1}
    assert identity(Now(new=2)) == {"old": 1, "new": 2}
    assert keys_of_kind(Now(), "convergence") == {"old": 1, "new": 0}


def test_every_key_has_a_kind_and_a_meaning() -> None:
    def keys(section: Any) -> list[tuple[str, Any]]:
        found = []
        for name, field in section.model_fields.items():
            inner = [
                kind
                for kind in (field.annotation, *getattr(field.annotation, "__args__", ()))
                if _is_section(kind)
            ]
            found += keys(inner[0]) if inner else [(name, field)]
        return found

    for name, field in keys(Config):
        assert field.description, name
        assert field.json_schema_extra["x-kind"] in ("convergence", "layout", "execution"), name


def test_kinds_of_keys_do_not_overlap() -> None:
    found = load_experiments(config())["main"]
    flat = [set(_flat(keys_of_kind(found, kind))) for kind in ("convergence", "layout", "execution")]
    assert sum(map(len, flat)) == len(set.union(*flat))


def _flat(values: dict[str, Any], path: str = "") -> list[str]:
    keys = []
    for name, value in values.items():
        keys += _flat(value, f"{path}{name}.") if isinstance(value, dict) and value else [f"{path}{name}"]
    return keys


def test_yaml_faults_are_problems(tmp_path: Path) -> None:
    for text in ("a: [", "- 1", ""):
        path = tmp_path / "c.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError) as refused:
            read_yaml(path)
        assert refused.value.problems[0].id == "configuration_file"
