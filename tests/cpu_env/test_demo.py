"""The tiny model, the arithmetic task and its rewards."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from cpu_stack import REPO, CpuRun
from grpoflow.demo import data
from grpoflow.demo.files import complete_directory


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def prompts(rows: Iterable[dict[str, object]]) -> set[str]:
    return {row["messages"][0]["content"] for row in rows}  # type: ignore[index]


# ---------------------------------------------------------------- files


def test_directory_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "parent/out"
    with pytest.raises(RuntimeError, match="half"), complete_directory(out) as temporary:
        (temporary / "file").touch()
        assert not out.exists()
        raise RuntimeError("half way")
    assert list(out.parent.iterdir()) == []


def test_older_directory_stays_after_a_failure_and_goes_after_a_success(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with complete_directory(out) as temporary:
        (temporary / "old").touch()
    with pytest.raises(RuntimeError), complete_directory(out):
        raise RuntimeError
    assert [path.name for path in out.iterdir()] == ["old"]
    with complete_directory(out) as temporary:
        (temporary / "new").touch()
    assert [path.name for path in out.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [out]


def test_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(FileExistsError, match="not a directory"), complete_directory(tmp_path / "out"):
        pass


# ---------------------------------------------------------------- data


def test_held_out_prompts_occur_in_no_training_file() -> None:
    rows = data.rows(p_right=0.7, seed=0)
    val = prompts(rows["val"])
    assert len(rows["val"]) == len(val) >= 400
    assert not val & prompts(rows["sft"])
    assert not val & prompts(rows["train"])


def test_every_pair_of_digits_is_trained() -> None:
    rows = data.rows(p_right=0.7, seed=0)
    seen = {tuple(int(char) for char in prompt if char.isdigit()) for prompt in prompts(rows["train"])}
    assert seen == {(a, b) for a in range(data.DIGITS) for b in range(data.DIGITS)}


def test_solutions_are_the_sums() -> None:
    for row in data.rows(p_right=0.7, seed=3)["train"]:
        digits = [int(char) for char in row["messages"][0]["content"] if char.isdigit()]
        assert row["solution"] == str(sum(digits))


@pytest.mark.parametrize("p_right", [0.0, 0.3, 0.7, 1.0])
def test_share_of_right_answers(p_right: float) -> None:
    sft = data.rows(p_right, seed=0)["sft"]
    right = sum(row["messages"][1]["content"] == f"<answer>{row['solution']}</answer>" for row in sft)
    by_chance = (1 - p_right) / (2 * data.DIGITS - 1)
    assert right / len(sft) == pytest.approx(p_right + by_chance, abs=0.02)


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    data.write(tmp_path / "a", seed=1)
    data.write(tmp_path / "b", seed=1)
    data.write(tmp_path / "c", seed=2)
    a, b, c = (digests(tmp_path / name) for name in "abc")
    assert set(a) == {"sft.jsonl", "train.jsonl", "val.jsonl"}
    assert a == b
    assert not set(a.values()) & set(c.values())


@pytest.mark.parametrize("p_right", [-0.1, 1.5])
def test_impossible_share_is_refused(tmp_path: Path, p_right: float) -> None:
    with pytest.raises(ValueError, match=f"p_right: {p_right} is not a probability"):
        data.write(tmp_path / "out", p_right=p_right)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- model


def build(cpu_run: CpuRun, out: Path, kind: str, seed: int = 0) -> Path:
    arguments = ("-m", "grpoflow.demo.model", out, "--kind", kind, "--seed", str(seed))
    cpu_run("python", *arguments, env={"PYTHONPATH": str(REPO / "workflow")})
    return out


@pytest.mark.real
@pytest.mark.parametrize("kind", ["text", "vlm", "moe_text", "moe_vlm"])
def test_same_seed_same_checkpoint(cpu_run: CpuRun, tmp_path: Path, kind: str) -> None:
    a = build(cpu_run, tmp_path / "a", kind)
    b = build(cpu_run, tmp_path / "b", kind)
    assert digests(a) == digests(b)
    config = json.loads((a / "config.json").read_text())
    wanted = ("Qwen3_5Moe" if "moe" in kind else "Qwen3_5") + (
        "ForConditionalGeneration" if "vlm" in kind else "ForCausalLM"
    )
    assert config["architectures"] == [wanted]
    assert (a / "preprocessor_config.json").exists() == ("vlm" in kind)
    assert {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= {
        path.name for path in a.iterdir()
    }


@pytest.mark.real
def test_other_seed_other_weights_same_tokenizer(cpu_run: CpuRun, tmp_path: Path) -> None:
    a = digests(build(cpu_run, tmp_path / "a", "text"))
    b = digests(build(cpu_run, tmp_path / "b", "text", seed=1))
    assert {name for name in a if a[name] != b[name]} == {"model.safetensors"}


@pytest.mark.real
def test_loads_as_its_own_class_and_speaks_the_chat_format(cpu_run: CpuRun, tmp_path: Path) -> None:
    model = build(cpu_run, tmp_path / "model", "vlm")
    program = f"""
import json, torch, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained({str(model)!r})
model, report = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(
    {str(model)!r}, output_loading_info=True)
text = tokenizer.apply_chat_template(
    [{{"role": "user", "content": "1 + 1 ="}}],
    tokenize=False, add_generation_prompt=True, enable_thinking=False)
ids = tokenizer(text)["input_ids"]
logits = model(input_ids=torch.tensor([ids])).logits
end = model.generation_config.eos_token_id
print(json.dumps([
    text, tokenizer.decode(ids), list(logits.shape), len(ids), model.config.text_config.vocab_size,
    tokenizer.convert_ids_to_tokens(end), [len(x) for x in report.values()], str(model.dtype)]))
"""
    written = cpu_run("python", "-c", program).stdout.splitlines()[-1]
    text, decoded, shape, length, vocabulary, ends, problems, dtype = json.loads(written)
    assert text == "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert decoded == text
    assert shape == [1, length, vocabulary]
    assert ends == ["<|im_end|>", "<|endoftext|>"]
    assert not any(problems)
    assert dtype == "torch.bfloat16"


# ---------------------------------------------------------------- rewards


@pytest.fixture
def rewards(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], Callable[..., list[float]]]]:
    """The plugin's functions by name. ms-swift's registry is a dictionary, its base class an empty one."""
    registry: dict[str, Callable[[], Callable[..., list[float]]]] = {}
    module = types.ModuleType("swift.rewards")
    module.ORM, module.orms = object, registry  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "swift", types.ModuleType("swift"))
    monkeypatch.setitem(sys.modules, "swift.rewards", module)
    spec = importlib.util.spec_from_file_location("arithmetic", REPO / "config/rewards/arithmetic.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return registry


THINK = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("completion", "accuracy", "form"),
    [
        (THINK + "<answer>4</answer>", 1.0, 1.0),
        ("<answer>4</answer>", 1.0, 1.0),
        (THINK + "<answer> 4 </answer>\n", 1.0, 1.0),
        (THINK + "<answer>5</answer>", 0.0, 1.0),
        (THINK + "<answer>-4</answer>", 0.0, 1.0),
        (THINK + "<answer>04</answer>", 0.0, 1.0),
        (THINK + "4", 0.0, 0.0),
        (THINK + "<answer>4", 0.0, 0.0),
        (THINK + "<answer>four</answer>", 0.0, 0.0),
        (THINK + "<answer>5</answer><answer>4</answer>", 0.0, 0.0),
        (THINK + "<answer>4</answer> or so", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_rewards(
    rewards: dict[str, Callable[[], Callable[..., list[float]]]],
    completion: str,
    accuracy: float,
    form: float,
) -> None:
    assert rewards["arithmetic_accuracy"]()([completion], solution=["4"], prompt_id=["x"]) == [accuracy]
    assert rewards["arithmetic_format"]()([completion], solution=["4"]) == [form]


def test_rewards_are_per_completion(
    rewards: dict[str, Callable[[], Callable[..., list[float]]]],
) -> None:
    completions = ["<answer>1</answer>", "<answer>2</answer>", "?"]
    assert rewards["arithmetic_accuracy"]()(completions, solution=["1", "1", "1"]) == [1.0, 0.0, 0.0]
