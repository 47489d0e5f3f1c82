"""Evaluation: completions belong to their prompts, statistics say what they mean, nothing mixes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpoflow.config import Config, load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.plan.inference import Inference, inference_of
from grpoflow.stages.base import StageFailed
from grpoflow.stages.evaluate import Scored, compare, describe, examples, join
from grpoflow.stages.statistics import mean_of_prompts, paired_difference, pass_at

ROOT = Path(__file__).parents[2]
PREFIX = "<think>\n\n</think>\n\n"
ROWS = [{"messages": [{"role": "user", "content": f"What is {n}?"}], "solution": str(n)} for n in range(4)]


@pytest.fixture
def config() -> Config:
    overlay = {"rewards": {"functions": ["right", "form"], "weights": [1.0, 0.5]}, "evaluate": {"samples": 2}}
    return load_experiments(merge(read_yaml(ROOT / "config/config.yaml"), overlay))["main"]


def scored(right: list[list[float]], form: list[list[float]] | None = None) -> Scored:
    rewards = np.array(right, dtype=float)
    other = np.array(form, dtype=float) if form else np.zeros_like(rewards)
    texts = [[f"{row}-{sample}" for sample in range(rewards.shape[1])] for row in range(len(rewards))]
    return Scored({"right": rewards, "form": other}, np.full(rewards.shape, 5), texts)


def write_answers(path: Path, rows: list[dict[str, Any]], response: str = PREFIX + "4") -> Path:
    lines = [
        {"messages": [*row["messages"], {"role": "assistant", "content": response}], "response": response}
        for row in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_completions_are_put_beside_their_rows(tmp_path: Path) -> None:
    joined = join(ROWS, write_answers(tmp_path / "a.jsonl", ROWS), PREFIX)
    assert [row["solution"] for row in joined] == ["0", "1", "2", "3"]
    assert joined[0]["completion"] == PREFIX + "4"


@pytest.mark.parametrize(
    ("rows", "response", "message"),
    [
        (ROWS[:3], PREFIX + "4", "3 completions for 4 prompts"),
        (ROWS + ROWS, PREFIX + "4", "8 completions for 4 prompts"),  # a rerun that appended to a result
        (ROWS[::-1], PREFIX + "4", "in another order"),
        (ROWS, PREFIX, "empty"),
        (ROWS, "<think>\n4", "enable_thinking"),  # the other mode
    ],
)
def test_other_completions_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], response: str, message: str
) -> None:
    with pytest.raises(StageFailed, match=message):
        join(ROWS, write_answers(tmp_path / "a.jsonl", rows, response), PREFIX)


def test_no_result_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="wrote no"):
        join(ROWS, tmp_path / "absent.jsonl", PREFIX)


def test_pass_at_k_is_the_unbiased_estimator() -> None:
    scores = np.array([[1.0, 0.0, 0.0, 0.0], [0.0] * 4, [1.0] * 4])
    found = pass_at(scores, 1.0)
    assert found.keys() == {1, 2, 4}
    assert found[1] == pytest.approx((0.25 + 0 + 1) / 3)
    assert found[2] == pytest.approx((0.5 + 0 + 1) / 3)  # 1 - C(3,2)/C(4,2)
    assert found[4] == pytest.approx(2 / 3)


def test_rewards_are_weighted_and_differences_paired(config: Config) -> None:
    before = scored([[0, 1], [0, 0], [1, 1], [0, 0]], [[1, 1]] * 4)
    after = scored([[1, 1], [1, 0], [1, 1], [0, 0]], [[1, 1]] * 4)
    found = compare(config, before, after)
    assert found["sft"]["reward"] == pytest.approx(3 / 8 + 0.5)
    assert found["grpo"]["functions"] == {"right": pytest.approx(5 / 8), "form": 1.0}
    assert found["difference"]["mean"] == pytest.approx(2 / 8)
    assert found["differences"]["right"]["mean"] == pytest.approx(2 / 8)
    assert found["differences"]["form"] == {"mean": 0, "low": 0, "high": 0, "confidence": 0.95, "prompts": 4}
    assert found["sft"]["pass_at"]["right"] == {1: 3 / 8, 2: 2 / 4}
    assert found["sft"]["tokens"]["at_the_cap"] == 0.0


def test_a_function_that_judges_some_prompts_only(config: Config) -> None:
    nothing = float("nan")
    before = scored([[0, 1], [nothing, nothing], [1, 1], [0, nothing]])
    found = compare(config, before, scored([[1, 1]] * 4))
    assert found["sft"]["functions"]["right"] == pytest.approx(3 / 5)
    assert found["differences"]["right"]["prompts"] == 3
    assert found["sft"]["reward"] == pytest.approx(3 / 8)  # what is not judged counts nothing, as in training
    json.dumps(found, allow_nan=False)
    silent = describe(config, scored([[nothing, nothing]]))
    assert silent["functions"]["right"] is None


def test_the_model_against_itself_is_not_significant() -> None:
    """Two samplings of one model, 400 prompts of different difficulty, k = 8."""
    significant = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        difficulty = rng.beta(1, 2, size=(400, 1))
        first, second = ((rng.random((400, 8)) < difficulty).astype(float) for _ in range(2))
        found = paired_difference(first, second, 0.95, seed)
        significant += not found["low"] <= 0 <= found["high"]
    assert significant <= 6  # 5 % of 40 is 2


def test_a_gain_is_significant() -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.beta(1, 2, size=(400, 1))
    before = (rng.random((400, 8)) < difficulty).astype(float)
    after = (rng.random((400, 8)) < difficulty + 0.05).astype(float)
    assert paired_difference(before, after, 0.95, 0)["low"] > 0


def test_many_prompts_need_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).random((300, 2))
    at_once = paired_difference(scores, scores[::-1], 0.95, 0)
    monkeypatch.setattr("grpoflow.stages.statistics.DRAWN_AT_ONCE", 1000)
    in_parts = paired_difference(scores, scores[::-1], 0.95, 0)
    assert in_parts == pytest.approx(at_once)


def test_the_most_improved_and_most_damaged_prompts(config: Config) -> None:
    before = scored([[0, 0], [1, 1], [0, 1], [1, 0]])
    after = scored([[1, 1], [0, 0], [0, 1], [1, 1]])
    found = examples(config, ROWS, before, after)
    assert [entry["row"] for entry in found["improved"]] == [1, 4]
    assert [entry["row"] for entry in found["damaged"]] == [2]
    assert found["improved"][0]["before"] == {"reward": 0.0, "completion": "0-0"}
    assert found["damaged"][0]["messages"] == ROWS[1]["messages"]


def test_mean_of_prompts_leaves_out_what_is_not_judged() -> None:
    nan = float("nan")
    np.testing.assert_array_equal(mean_of_prompts(np.array([[1.0, nan], [nan, nan]])), [1.0, nan])


@pytest.mark.parametrize(
    ("gpus", "tensor", "expected"),
    [
        (8, 1, Inference(1, 8, 8, copies=8)),
        (8, 2, Inference(1, 8, 8, copies=4)),
        (6, 4, Inference(1, 1, 4)),
        (8, 8, Inference(1, 1, 8)),
        (1, 1, Inference(1, 1, 1)),
        (8, 3, Inference(1, 6, 6, copies=2)),
        (8, 16, Inference(2, 8, 8)),
        (8, 12, Inference(3, 8, 8)),
    ],
)
def test_gpus_that_generate(gpus: int, tensor: int, expected: Inference) -> None:
    overlay = {
        "cluster": {"device": "cuda", "gpus_per_node": gpus},
        "evaluate": {"engine": "vllm"},
        "rollout": {"tensor_parallel_size": tensor, "mode": "colocate"},
    }
    config = load_experiments(merge(read_yaml(ROOT / "config/config.yaml"), overlay))["main"]
    assert inference_of(config) == expected
