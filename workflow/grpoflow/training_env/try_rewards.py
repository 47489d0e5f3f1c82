"""Call every reward function as GRPO does, on completions of all kinds, and say what is wrong.

    python -m grpoflow.training_env.try_rewards REQUEST.json

The request holds `plugin` (path or null), `functions` (names), `args` (arguments of the trainer that built-in
functions read), `rows` (rows of the data set), `completions` (text by kind, all given to every row) and
`result`; it may hold `seconds` (the longest that one call may take), `weights` (by function) and `examples`
(rows with `right` and `wrong`, completions that a weighted sum of the rewards must tell apart).

The result is `{"faults": [{"function", "fault", "message"}], "calls": {function: {...}}}`.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .rewards import call, instantiate, keyword_arguments, parameters_of, registered

Row = dict[str, Any]
Fault = dict[str, str]


class TooSlow(BaseException):
    """A call took too long. No Exception: a plugin that catches everything must not catch it."""


@dataclass
class Trial:
    """What was found out about one function."""

    name: str
    faults: list[Fault] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    seconds: float = 0.0

    def fault(self, kind: str, message: str) -> None:
        self.faults.append({"function": self.name, "fault": kind, "message": message})

    def facts(self) -> dict[str, Any]:
        numbers = [float(reward) for reward in self.rewards if reward is not None]
        return {
            "completions": len(self.rewards),
            "seconds": round(self.seconds, 4),
            "lowest": min(numbers, default=None),
            "highest": max(numbers, default=None),
        }


@contextmanager
def limit(seconds: float | None) -> Iterator[None]:
    """Interrupt the block after so many seconds. Code that never returns to Python goes on: the caller of
    this program has a limit of its own."""
    if seconds is None:
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def try_function(
    name: str,
    function: Any,
    rows: Sequence[Row],
    completions: Mapping[str, str],
    seconds: float | None = None,
) -> Trial:
    """Call one function once with every completion of every row, as in training."""
    trial = Trial(name)
    every_row = [row for row in rows for _ in completions]
    texts = [text for _ in rows for text in completions.values()]
    arguments = keyword_arguments(every_row, texts, [range(len(text) // 4) for text in texts])
    needed, _ = parameters_of(function)
    missing = [parameter for parameter in needed if parameter not in arguments]
    if missing:
        columns = ", ".join(sorted({column for row in rows for column in row}))
        trial.fault("signature", f"needs the columns {', '.join(missing)}; the data have {columns}")
        return trial
    print(f"calling {name} with {len(texts)} completions", flush=True)
    start = time.perf_counter()
    try:
        with limit(seconds):
            rewards = call(function, texts, arguments)
    except TooSlow:
        trial.fault("slow", f"no answer within {seconds:g} s for {len(texts)} completions")
        return trial
    except Exception as error:  # whatever the plugin raises would end the training
        kind = _first_that_raises(function, rows, completions, seconds)
        trial.fault("exception", f"{type(error).__name__}: {error}{kind}")
        return trial
    trial.seconds = time.perf_counter() - start
    trial.rewards = _checked(trial, rewards, len(texts))
    return trial


def _first_that_raises(
    function: Any, rows: Sequence[Row], completions: Mapping[str, str], seconds: float | None
) -> str:
    """Name the kind of completion that a function cannot take by itself."""
    for kind, text in completions.items():
        try:
            with limit(seconds):
                call(function, [text], keyword_arguments(rows[:1], [text], [range(len(text) // 4)]))
        except (Exception, TooSlow):
            return f" (completion: {kind})"
    return ""


def _checked(trial: Trial, rewards: Any, count: int) -> list[Any]:
    """The rewards as a list of numbers and None; a fault and [] if they are not one per completion.

    ms-swift 4.6.0 swift/rl_core/grpo_algorithm.py:67 makes a tensor of them and assigns it to a column: a
    list of length 1 is broadcast.
    """
    try:
        found = None if isinstance(rewards, str | bytes | dict) else list(rewards)
    except TypeError:
        found = None
    if found is None:
        what = type(rewards).__name__
        trial.fault("type", f"returns {what}, not a list with one number per completion")
        return []
    if len(found) != count:
        why = "; a single one would be given to every completion" if len(found) == 1 else ""
        trial.fault("length", f"returns {len(found)} rewards for {count} completions{why}")
        return []
    wrong = [reward for reward in found if reward is not None and not _is_number(reward)]
    if wrong:
        trial.fault("type", f"returns {wrong[0]!r}, which is not a finite number")
        return []
    if all(reward is None for reward in found):
        trial.fault("none", "returns None for every completion")
    return [None if reward is None else float(reward) for reward in found]


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _without_any_reward(trials: Sequence[Trial], completions: Mapping[str, str]) -> Iterator[Fault]:
    """Kinds of completions for which every function returned None: their reward would be 0."""
    if not trials or any(not trial.rewards for trial in trials):
        return
    kinds = list(completions)
    unjudged = {
        kinds[index % len(kinds)]
        for index, rewards in enumerate(zip(*(trial.rewards for trial in trials), strict=True))
        if all(reward is None for reward in rewards)
    }
    if unjudged and not any(trial.faults for trial in trials):
        message = f"return None for the completions: {', '.join(sorted(unjudged))}"
        yield {"function": "all functions", "fault": "none", "message": message}


def judge_examples(
    functions: Mapping[str, Any], weights: Mapping[str, float], examples: Sequence[Row]
) -> Iterator[Fault]:
    """Examples whose right completions do not earn more than the wrong ones."""
    for number, example in enumerate(examples, start=1):
        row = {name: value for name, value in example.items() if name not in ("right", "wrong")}
        rewards: dict[str, list[float]] = {}
        for side in ("right", "wrong"):
            given = example[side]
            texts = given if isinstance(given, list) else [given]
            arguments = keyword_arguments(
                [row] * len(texts), texts, [range(len(text) // 4) for text in texts]
            )
            by_function = {name: list(call(f, texts, arguments)) for name, f in functions.items()}
            rewards[side] = [
                sum(weights.get(name, 1.0) * (values[index] or 0.0) for name, values in by_function.items())
                for index in range(len(texts))
            ]
        lowest, highest = min(rewards["right"]), max(rewards["wrong"])
        if not lowest > highest:
            message = f"example {number}: a right completion earns {lowest:g}, a wrong one {highest:g}"
            yield {"function": "all functions", "fault": "examples", "message": message}


def try_all(request: Mapping[str, Any]) -> dict[str, Any]:
    """The faults and the timing of every function of a request."""
    faults: list[Fault] = []
    try:
        known = registered(request["plugin"])
    except (Exception, SystemExit) as error:  # an import runs the plugin's own code
        message = f"{type(error).__name__}: {error}"
        return {
            "faults": [{"function": request["plugin"], "fault": "plugin", "message": message}],
            "calls": {},
        }
    functions: dict[str, Any] = {}
    trials: dict[str, Trial] = {}
    for name in request["functions"]:
        trial = Trial(name)
        if name not in known:
            trial.fault("registered", f"known are {', '.join(sorted(known))}")
        else:
            try:
                functions[name] = instantiate(known[name], request["args"])
            except Exception as error:
                trial.fault("exception", f"{type(error).__name__}: {error}")
        if name in functions:
            seconds = request.get("seconds")
            trial = try_function(name, functions[name], request["rows"], request["completions"], seconds)
        trials[name] = trial
        faults += trial.faults
    faults += _without_any_reward(list(trials.values()), request["completions"])
    if not faults and request.get("examples"):
        faults += judge_examples(functions, request.get("weights", {}), request["examples"])
    return {"faults": faults, "calls": {name: trial.facts() for name, trial in trials.items()}}


def main(argv: list[str]) -> int:
    request = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    Path(request["result"]).write_text(json.dumps(try_all(request)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
