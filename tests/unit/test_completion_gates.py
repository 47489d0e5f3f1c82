"""Gates of a training: what is wrong is found, what is merely unusual passes."""

import math
import random
from typing import Any

import pytest
from grpoflow.gates import (
    Finding,
    has_prefix,
    is_broken,
    is_one_symbol,
    is_repetitive,
    judge_agreement,
    judge_completions,
    judge_history,
    judge_lengths,
    judge_rewards,
    reward_groups,
)

NO_THINKING = "<think>\n\n</think>\n\n"
THINKING = "<think>\n"
PROSE = (
    "To add 17 and 25, first add the tens: 10 + 20 = 30. Then add the ones: 7 + 5 = 12, of which the ten "
    "joins the others. Together that is 42, which can be checked by taking 25 away again: 42 - 25 = 17.\n\n"
    "<answer>42</answer>"
)
GOOD = {
    "prose": PROSE,
    "short": "<answer>4</answer>",
    "thinking closed": "Let me see.\n</think>\n\n<answer>4</answer>",
    "Chinese": "首先把十位数相加、然后把个位数相加、最后得到答案四十二。" * 2,
    "table": "| a | b |\n|---|---|\n| 1 | 2 |\n"
    + "-" * 20
    + "\nThe sum of both columns is 3, so the answer is 3.",
    "code": "def add(a, b):\n    return a + b\n\n\nprint(add(17, 25))\n",
    "cut in a character": "答案是四\ufffd",
}


def gates(findings: list[Finding]) -> set[str]:
    return {finding.gate for finding in findings}


@pytest.mark.parametrize("kind", GOOD)
def test_usual_completions_pass(kind: str) -> None:
    assert judge_completions([GOOD[kind]] * 8) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("empty completions", " \n"),
        ("one symbol", "!" * 100),
        ("one symbol", "So ! ! ! ! ! ! ! ! ! ! ! ! ! !"),
        ("repetition", "the answer is " * 60),
        ("broken text", "ans\ufffd\ufffdwer\x07 is"),
    ],
)
def test_a_garbage_producing_server_is_found(kind: str, text: str) -> None:
    """ms-swift#9787: after a sync that went wrong a server answers `<think>!!!!!!`."""
    (finding,) = judge_completions([NO_THINKING + text] * 8, NO_THINKING)
    assert finding.gate == kind
    assert finding.level == "stop"
    assert finding.numbers["share"] == 1.0
    assert "100% of 8 completions" in str(finding)
    assert "Known causes: " in str(finding)


def test_random_tokens_are_found_as_broken_text() -> None:
    rng = random.Random(0)
    texts = [bytes(rng.randrange(256) for _ in range(100)).decode("utf-8", "replace") for _ in range(8)]
    assert gates(judge_completions(texts)) == {"broken text"}


def test_a_few_bad_completions_are_no_finding() -> None:
    assert judge_completions([PROSE] * 9 + ["!" * 100], "") == []


@pytest.mark.parametrize(
    ("trainer", "server"), [(NO_THINKING, THINKING), (THINKING, NO_THINKING), (NO_THINKING, "")]
)
def test_enable_thinking_that_differs_is_found(trainer: str, server: str) -> None:
    assert judge_completions([trainer + PROSE] * 4, trainer) == []
    (finding,) = judge_completions([server + PROSE] * 4, trainer)
    assert finding.gate == "thinking"
    assert "enable_thinking" in finding.causes[0]


def test_pieces() -> None:
    assert is_one_symbol("!!!!!!!!")
    assert not is_one_symbol("!!!!")
    assert is_repetitive("ab" * 500)
    assert not is_repetitive("ab" * 50)
    assert is_broken("a\ud83db")
    assert not is_broken("tab\tand\r\nline")
    assert has_prefix(THINKING + "so", THINKING)
    assert not has_prefix(THINKING + "\n</think>", THINKING)


def test_no_completions_at_all() -> None:
    assert gates(judge_completions([])) == {"completions"}


def test_lengths() -> None:
    def record(mean: float, least: float) -> dict[str, Any]:
        return {"completions/mean_length": mean, "completions/min_length": least}

    assert judge_lengths(record(99.5, 60), cap=100) == []
    assert judge_lengths({}, cap=100) == []
    (finding,) = judge_lengths(record(100, 100), cap=100)
    assert "generation_config.json" in finding.causes[0]
    assert finding.numbers == {"shortest": 100.0, "limit": 100.0}
    assert gates(judge_lengths(record(0, 0), cap=100)) == {"length"}


def test_rewards_of_a_rollout_by_prompt() -> None:
    table = {
        "prompt": ["a", "a", "b", "b"],
        "completion": ["", "", "", ""],
        "Accuracy": [1.0, 0.0, math.nan, 0.5],
        "Format": [1.0, 1.0, None, 1.0],
        "advantages": [9.0] * 4,
    }
    record = {
        "reward": 0.5,
        "rewards/Accuracy/mean": 0.5,
        "rewards/Accuracy/std": 0,
        "rewards/Format/mean": 1,
    }
    first, second = reward_groups(table, record, [1.0, 0.5])
    assert first == [1.5, 0.5]
    assert math.isnan(second[0])  # no function gave it any
    assert second[1] == 1.0
    assert reward_groups({"prompt": ["a"], "completion": [""]}, record, [1.0, 0.5]) == []


@pytest.mark.parametrize(
    ("groups", "gate", "level"),
    [
        ([[0.0, 1.0], [math.nan, 1.0]], "reward", "stop"),
        ([[0.0, math.inf]], "reward", "stop"),
        ([], "reward", "stop"),
        ([[0.0, 0.0], [0.0, 0.0]], "reward", "stop"),
        ([[0.0, 0.0]] * 30 + [[1.0, 1.0]] * 30, "groups", "alarm"),
    ],
)
def test_rewards_that_teach_nothing(groups: list[list[float]], gate: str, level: str) -> None:
    (finding,) = judge_rewards(groups)
    assert (finding.gate, finding.level) == (gate, level)


def test_rewards_that_differ_pass() -> None:
    assert judge_rewards([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]) == []


def test_agreement() -> None:
    def record(k3_kl: float, log_ppl: float) -> dict[str, Any]:
        return {"rollout_correction/k3_kl": k3_kl, "rollout_correction/log_ppl_abs_diff": log_ppl}

    assert judge_agreement(record(0.002, 0.03)) == []
    assert judge_agreement({"loss": 0.0}) == []
    for k3_kl, log_ppl in ((2.5, 0.1), (0.01, 3.0), (math.nan, 0.0)):
        (finding,) = judge_agreement(record(k3_kl, log_ppl))
        assert finding.level == "stop"
    assert "k3_kl 2.5 (limit 0.1)" in judge_agreement(record(2.5, 0.1))[0].message


def training(rewards: list[float], **values: float) -> list[dict[str, Any]]:
    common = {"loss": 0.0, "grad_norm": 0.3, "reward_std": 0.4, "completions/mean_length": 20.0, **values}
    return [{**common, "reward": reward, "step": step} for step, reward in enumerate(rewards, start=1)]


def test_a_usual_training_has_no_alarm() -> None:
    rng = random.Random(0)
    rewards = [min(0.9, 0.3 + 0.005 * step) + rng.gauss(0, 0.05) for step in range(120)]
    for length in range(len(rewards)):
        assert judge_history(training(rewards[:length], kl=0.05, frac_reward_zero_std=0.5), cap=32) == []


def test_reward_collapse() -> None:
    (finding,) = judge_history(training([0.6] * 30 + [0.05] * 12), cap=32)
    assert finding.gate == "reward collapse"
    assert finding.numbers["best"] == pytest.approx(0.6)
    assert finding.numbers["now"] == pytest.approx(0.05)


def test_negative_rewards_collapse_too() -> None:
    assert gates(judge_history(training([-0.5] * 30 + [-2.0] * 12), cap=32)) == {"reward collapse"}
    assert judge_history(training([-2.0] * 30 + [-0.5] * 12), cap=32) == []


@pytest.mark.parametrize(
    ("gate", "values"),
    [
        ("KL", {"kl": 4.0}),
        ("length at the cap", {"completions/mean_length": 31.5}),
        ("length at the cap", {"completions/clipped_ratio": 0.95}),
        ("groups", {"frac_reward_zero_std": 1.0}),
        ("gradient", {"grad_norm": 0.0}),
        ("finite", {"grad_norm": math.nan}),
    ],
)
def test_alarms(gate: str, values: dict[str, float]) -> None:
    assert gates(judge_history(training([0.5] * 20, **values), cap=32)) == {gate}
