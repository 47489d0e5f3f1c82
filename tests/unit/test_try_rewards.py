"""The dry run of reward functions finds what would end a training, or silently spoil it."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from grpoflow.training_env.rewards import columns_of
from grpoflow.training_env.try_rewards import try_all

ROWS = [
    {"messages": [{"role": "user", "content": f"What is 2 + {n}?"}], "solution": str(2 + n)} for n in range(2)
]
COMPLETIONS = {
    "empty": "",
    "no tags": "4",
    "right for the first": "<answer>2</answer>",
    "emoji": "\U0001f642",
}


def accuracy(completions: list[str], solution: list[str], **_: Any) -> list[float]:
    return [
        float(f"<answer>{right}</answer>" in text) for text, right in zip(completions, solution, strict=True)
    ]


class Accuracy:
    def __init__(self, args: Any = None):
        self.limit = args.soft_max_length

    def __call__(self, completions: list[str], solution: list[str], **_: Any) -> list[float]:
        return accuracy(completions, solution)


class Asynchronous:
    async def __call__(self, completions: list[str], solution: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(0)
        return accuracy(completions, solution)


def in_a_category(completions: list[str], **_: Any) -> list[float | None]:
    return [1.0 if text else None for text in completions]


Try = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Try:
    """Try functions that are registered as ms-swift's plugins register them."""

    def runner(**functions: Any) -> dict[str, Any]:
        module = ModuleType("swift.rewards")
        options = functions.pop("options", {})
        module.orms = functions  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "swift", ModuleType("swift"))
        monkeypatch.setitem(sys.modules, "swift.rewards", module)
        request = {
            "plugin": None,
            "functions": list(functions),
            "args": {"soft_max_length": 10},
            "rows": ROWS,
            "completions": COMPLETIONS,
            "seconds": 2.0,
            **options,
        }
        return try_all(request)

    return runner


def test_functions_that_are_right_pass(run: Try) -> None:
    found = run(function=accuracy, made=Accuracy, waited=Asynchronous, some=in_a_category)
    assert found["faults"] == []
    assert found["calls"]["function"]["completions"] == len(ROWS) * len(COMPLETIONS)
    assert found["calls"]["waited"]["highest"] == 1.0
    assert found["calls"]["some"]["lowest"] == 1.0


def raises_on_emoji(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text.encode("ascii"))) for text in completions]


def sleeps(completions: list[str], **_: Any) -> list[float]:
    time.sleep(10)
    return [0.0] * len(completions)


def sleeps_and_catches(completions: list[str], **_: Any) -> list[float]:
    with contextlib.suppress(Exception):
        time.sleep(10)
    return [0.0] * len(completions)


FAULTY: dict[str, tuple[Any, str, str]] = {
    "length 1": (
        lambda _c, **_: [1.0],
        "length",
        "returns 1 rewards for 8 completions; a single one would be given",
    ),
    "one more": (lambda c, **_: [1.0] * (len(c) + 1), "length", "returns 9 rewards for 8"),
    "None": (lambda c, **_: [None] * len(c), "none", "None for every completion"),
    "None itself": (lambda _c, **_: None, "type", "returns NoneType"),
    "a number": (lambda _c, **_: 1.0, "type", "returns float, not a list"),
    "text": (lambda c, **_: ["1"] * len(c), "type", "'1', which is not a finite number"),
    "nan": (lambda c, **_: [float("nan")] * len(c), "type", "nan"),
    "raises": (raises_on_emoji, "exception", "UnicodeEncodeError"),
    "names the completion": (raises_on_emoji, "exception", "(completion: emoji)"),
    "slow": (sleeps, "slow", "no answer within 0.2 s for 8 completions"),
    "slow and catches everything": (sleeps_and_catches, "slow", "no answer within 0.2 s"),
    "column": (
        lambda c, answer, **_: [float(answer == x) for x in c],
        "signature",
        "needs the columns answer; the data have messages",
    ),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_faults_are_named(run: Try, kind: str) -> None:
    function, fault, message = FAULTY[kind]
    found = run(broken=function, accuracy=accuracy, options={"seconds": 0.2})["faults"]
    assert [(entry["function"], entry["fault"]) for entry in found] == [("broken", fault)]
    assert message in found[0]["message"]


def test_a_function_that_nobody_registered(run: Try) -> None:
    found = run(known=accuracy, options={"functions": ["unknown"]})["faults"]
    assert found == [{"function": "unknown", "fault": "registered", "message": "known are known"}]


def test_a_completion_that_no_function_judges(run: Try) -> None:
    found = run(some=in_a_category, other=in_a_category)["faults"]
    assert found == [
        {"function": "all functions", "fault": "none", "message": "return None for the completions: empty"}
    ]


def test_a_plugin_that_cannot_be_imported(run: Try, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import no_such_package")
    found = run(options={"plugin": str(plugin), "functions": []})["faults"]
    assert found[0]["fault"] == "plugin"
    assert "no_such_package" in found[0]["message"]


EXAMPLE = {**ROWS[0], "right": ["<answer>2</answer>"], "wrong": ["<answer>3</answer>", ""]}


def test_right_and_wrong_are_told_apart(run: Try) -> None:
    assert run(accuracy=accuracy, options={"examples": [EXAMPLE]})["faults"] == []


def test_a_plugin_that_cannot_tell_right_from_wrong(run: Try) -> None:
    def length(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    found = run(length=length, options={"examples": [EXAMPLE]})["faults"]
    message = "example 1: a right completion earns 18, a wrong one 18"
    assert found == [{"function": "all functions", "fault": "examples", "message": message}]


def test_the_weights_decide_about_examples(run: Try) -> None:
    options = {"examples": [EXAMPLE], "weights": {"accuracy": 0.0, "some": 1.0}}
    found = run(accuracy=accuracy, some=in_a_category, options=options)["faults"]
    assert [entry["fault"] for entry in found] == ["examples"]


def test_columns_that_a_function_needs_and_may_use() -> None:
    def function(completions: Any, solution: Any, messages: Any, level: int = 1, **_: Any) -> None: ...

    assert columns_of(function) == (["solution"], ["level"])
    assert columns_of(Accuracy.__call__.__get__(object())) == (["solution"], [])
