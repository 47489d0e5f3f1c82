"""Checks that read the checkpoint and the data, and try the reward functions."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from configurations import config, model_directory
from grpoflow.preflight import Report, check_raw
from grpoflow.preflight.dataset import prompt_lengths
from grpoflow.preflight.rewards import RULE_OF_FAULT
from grpoflow.preflight.rules import CHECKS, Need

ROOT = Path(__file__).parents[2]
CPU = ROOT / ".envs/cpu"


def report(needs: Need, *overlays: dict[str, Any]) -> Report:
    configs, found = check_raw(config(*overlays), needs=("config", needs))
    assert configs, found
    return found


def ids(found: Report) -> set[str]:
    of_files = {rule.id for check in CHECKS if check.needs in ("data", "checkpoint") for rule in check.rules}
    return {problem.id for problem in found.problems} & of_files


# --- checkpoint ---


def checkpoint(here: Path) -> Path:
    directory = Path(model_directory(here, "9B"))
    vocabulary = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1, "content": "<|im_end|>"}]}
    (directory / "tokenizer.json").write_text(json.dumps(vocabulary))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("a", "b"):
        (directory / f"{name}.safetensors").write_bytes(b"x")
    index = {"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def of_checkpoint(path: Path) -> set[str]:
    return ids(report("checkpoint", {"model": {"path": str(path)}}))


def test_a_complete_checkpoint_is_fine(tmp_path: Path) -> None:
    assert of_checkpoint(checkpoint(tmp_path)) == set()


def test_the_demo_model_is_fine() -> None:
    directory = ROOT / "resources/demo/vlm"
    if not (directory / "config.json").is_file():
        pytest.skip("the demo model was not built")
    assert of_checkpoint(directory) == set()


@pytest.mark.parametrize("missing", ["b.safetensors", "tokenizer.json", "chat_template.jinja", "config.json"])
def test_what_is_missing_is_found(missing: str, tmp_path: Path) -> None:
    directory = checkpoint(tmp_path)
    (directory / missing).unlink()
    expected = {
        "b.safetensors": "every_shard_is_there",
        "tokenizer.json": "tokenizer_is_there",
        "chat_template.jinja": "chat_template_is_there",
        "config.json": "checkpoint_is_a_full_model",
    }
    assert of_checkpoint(directory) == {expected[missing]}


def test_an_empty_shard_is_found(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path)
    (directory / "a.safetensors").write_bytes(b"")
    assert of_checkpoint(directory) == {"every_shard_is_there"}


def test_a_tokenizer_larger_than_the_embedding_is_found(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path)
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 250_000}}}))
    assert of_checkpoint(directory) == {"tokenizer_is_there"}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["adapter_config.json", "config.json"], "LoRA adapter"),
        (["latest_checkpointed_iteration.txt"], "Megatron-core checkpoint"),
        (["__0_0.distcp"], "one iteration"),
        (["notes.txt"], "neither"),
        (None, "no such directory"),
    ],
)
def test_other_kinds_of_directories_are_named(names: list[str] | None, why: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    if names is not None:
        directory.mkdir()
        for name in names:
            (directory / name).write_text("{}")
    found = report("checkpoint", {"model": {"path": str(directory)}})
    (problem,) = [p for p in found.problems if p.id == "checkpoint_is_a_full_model"]
    assert why in problem.why


# --- data ---


def prompt(text: str = "1 + 1?", **columns: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "solution": "2", **columns}


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


def of_data(here: Path, rows: list[Any], *overlays: dict[str, Any]) -> Report:
    data = {"train": written(here / "train.jsonl", rows), "val": written(here / "val.jsonl", [prompt()])}
    return report("data", {"data": data}, *overlays)


def test_good_data_are_fine(tmp_path: Path) -> None:
    assert ids(of_data(tmp_path, [prompt(str(i)) for i in range(16)])) == set()


def test_missing_files_are_refused() -> None:
    sft = {
        "dataset": "absent.jsonl",
        "learning_rate": 1.0e-5,
        "epochs": 1,
        "global_batch_size": 8,
        "parallel": {},
    }
    found = report("data", {"sft": sft, "rewards": {"plugin": "absent.py"}})
    refused = {problem.key for problem in found.problems if problem.level == "refuse"}
    assert {"data.train", "data.val", "sft.dataset", "rewards.plugin"} <= refused
    assert ids(found) == {"data_can_be_read", "reward_plugin_exists"}


def test_invalid_rows_are_counted_with_the_first_of_each(tmp_path: Path) -> None:
    rows = [prompt(str(i)) for i in range(16)] + ["{not json\n", {"messages": []}, "also not\n"]
    (problem,) = [p for p in of_data(tmp_path, rows).problems if p.id == "rows_are_valid"]
    assert problem.level == "warn"
    assert "3 of 19 rows" in problem.why
    assert "2 x not valid JSON (first: row 17)" in problem.why
    strict = {"data": {"on_invalid": "refuse"}}
    (problem,) = [p for p in of_data(tmp_path, rows[1:], strict).problems if p.id == "rows_are_valid"]
    assert problem.level == "refuse"


def test_too_few_rows_for_one_rollout_are_refused(tmp_path: Path) -> None:
    (problem,) = [p for p in of_data(tmp_path, [prompt()] * 7).problems if p.id == "there_are_enough_rows"]
    assert problem.legal == ("8 rows or more",)


def test_images_are_counted_against_the_limit_of_the_server(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"x")
    rows = [prompt(str(i), images=["a.png", "b.png"]) for i in range(16)]
    left = {"data": {"truncation_strategy": "left"}}
    found = {p.id: p for p in of_data(tmp_path, rows, left).problems}
    assert found["server_accepts_the_images"].legal == (2,)
    assert found["images_are_not_cut"].legal == ("delete",)
    rows[3]["images"] = ["absent.png"]
    found = {p.id: p for p in of_data(tmp_path, rows).problems}
    assert "images: file not found (first: row 4)" in found["rows_are_valid"].why


def test_a_cache_without_reward_columns_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "dataset_info.json").write_text(json.dumps({"features": {"messages": {}, "lengths": {}}}))
    overlay = {"trainer": {"args": {"cached_dataset": str(cache)}}}
    found = of_data(tmp_path, [prompt(str(i)) for i in range(16)], overlay)
    (problem,) = [p for p in found.problems if p.id == "cache_has_the_reward_columns"]
    assert "solution" in problem.why


@pytest.mark.skipif(not (CPU / "bin/python").is_file(), reason="needs the CPU environment")
def test_prompt_lengths_come_from_the_tokenizer_of_the_checkpoint() -> None:
    tokenizer = ROOT / "resources/demo/vlm/tokenizer.json"
    if not tokenizer.is_file():
        pytest.skip("the demo model was not built")
    short, long = prompt("1 + 1?"), prompt("1 + 1? " * 50)
    lengths = prompt_lengths([short, long], CPU / "bin/python", tokenizer, image_tokens=0)
    assert lengths is not None
    assert lengths[0] < 20
    assert lengths[1] > 100
    with_image = prompt_lengths([{**short, "images": ["a"]}], CPU / "bin/python", tokenizer, image_tokens=64)
    assert with_image == [lengths[0] + 64]


def test_prompts_longer_than_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "grpoflow.preflight.data.prompt_lengths", lambda rows, *_: [10] * 8 + [300] * (len(rows) - 8)
    )
    rows = [prompt(str(i)) for i in range(16)]
    found = of_data(tmp_path, rows, {"data": {"max_length": 100}})
    (problem,) = [p for p in found.problems if p.id == "prompts_are_short_enough"]
    assert (problem.level, problem.legal) == ("warn", (300,))
    assert problem.why.startswith("50% of the prompts are longer")


def test_data_of_another_environment_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    path.write_bytes(b"PAR1")
    if "pyarrow" in sys.modules:
        pytest.skip("this environment reads Parquet")
    found = report("data", {"data": {"train": str(path)}})
    (problem,) = [p for p in found.problems if p.key == "data.train"]
    assert (problem.id, problem.level) == ("data_can_be_read", "warn")
    assert "cache_dataset" in problem.why


@pytest.mark.parametrize(
    ("rows", "given", "expected"),
    [
        (16, {}, ()),
        (3, {}, ("val_set_is_used", "refuse", "trainer.args.val_dataset", (4,))),
        (12, {}, ("val_set_fixed", "warn", "trainer.args.val_dataset", (16, 8))),
        (32, {"num_generations_eval": 2}, ("val_set_seen_once", "warn", "trainer.args.eval_iters", (1,))),
        (32, {"num_generations_eval": 2, "eval_iters": 1}, ()),
    ],
)
def test_evaluation_inside_of_training(
    tmp_path: Path, rows: int, given: dict[str, int], expected: tuple[Any, ...]
) -> None:
    """dp_size is 4, 64 completions a step, 8 of a prompt."""
    path = tmp_path / "eval.jsonl"
    path.write_text("".join(json.dumps(prompt(str(i))) + "\n" for i in range(rows)))
    args = {"val_dataset": str(path), **given}
    found = of_data(tmp_path, [prompt(str(i)) for i in range(64)], {"trainer": {"args": args}})
    problems = [(p.id, p.level, p.key, p.legal) for p in found.problems if p.key.startswith("trainer.args")]
    assert problems == ([expected] if expected else [])


# --- reward functions ---


def fake_environment(here: Path, script: str) -> str:
    """A training environment whose Python runs a script of ours."""
    python = here / "environment/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!{sys.executable}\nimport json, sys, time\n{script}\n")
    python.chmod(0o755)
    return str(here / "environment")


ANSWER = "json.dump({{'faults': {faults}}}, open(json.load(open(sys.argv[3]))['result'], 'w'))"


@pytest.mark.parametrize("fault", RULE_OF_FAULT)
def test_faults_become_problems(fault: str, tmp_path: Path) -> None:
    found = [{"function": "accuracy", "fault": fault, "message": "m"}]
    prefix = fake_environment(tmp_path, ANSWER.format(faults=found))
    problems = of_data(
        tmp_path, [prompt(str(i)) for i in range(16)], {"cluster": {"environment": prefix}}
    ).problems
    (problem,) = [p for p in problems if p.id == RULE_OF_FAULT[fault]]
    assert (problem.level, problem.why) == ("refuse", "accuracy: m")


def test_a_reward_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpoflow.preflight.rewards.REWARD_SECONDS", 0.5)
    prefix = fake_environment(tmp_path, "time.sleep(60)")
    found = of_data(tmp_path, [prompt(str(i)) for i in range(16)], {"cluster": {"environment": prefix}})
    assert "reward_answers_in_time" in ids(found)


def test_a_dry_run_that_dies_says_its_last_words(tmp_path: Path) -> None:
    prefix = fake_environment(tmp_path, "sys.exit('no swift here')")
    found = of_data(tmp_path, [prompt(str(i)) for i in range(16)], {"cluster": {"environment": prefix}})
    (problem,) = [p for p in found.problems if p.id == "reward_can_be_tried"]
    assert "no swift here" in problem.why


def test_every_rule_of_files_is_tested() -> None:
    """Their ids appear in this file."""
    text = Path(__file__).read_text()
    rules = {rule.id for check in CHECKS if check.needs in ("data", "checkpoint") for rule in check.rules}
    assert {rule for rule in rules if rule not in text} <= set(RULE_OF_FAULT.values())


@pytest.mark.real
@pytest.mark.skipif(not (CPU / "bin/python").is_file(), reason="needs the CPU environment")
def test_the_plugin_of_the_demo_passes_and_a_broken_one_does_not(tmp_path: Path) -> None:
    base = {"cluster": {"environment": str(CPU), "device": "cpu"}, "trainer": {"parallel": {"tensor": 1}}}
    rows = [prompt(str(i)) for i in range(16)]
    demo = {"plugin": str(ROOT / "config/rewards/arithmetic.py"), "functions": ["arithmetic_accuracy"]}
    assert ids(of_data(tmp_path, rows, base, {"rewards": demo})) == set()
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from swift.rewards import orms\n"
        "orms['short'] = lambda completions, **_: [1.0]\n"
        "orms['column'] = lambda completions, answer, **_: [1.0] * len(completions)\n"
    )
    broken = {"plugin": str(plugin), "functions": ["short", "column", "absent", "repetition"]}
    assert ids(of_data(tmp_path, rows, base, {"rewards": broken})) == {
        "reward_per_completion",
        "reward_signature_fits_the_columns",
        "reward_is_registered",
    }
