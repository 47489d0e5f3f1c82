"""Call every reward function as GRPO does, on a few completions of real rows, and say what is wrong.

    python -m grpoflow.training_env.try_rewards REQUEST.json

The request holds `plugin` (path or null), `functions` (names), `args` (arguments of the trainer that built-in
functions read), `rows` (rows of the data set), `completions` (one list per row) and `result`. The result is a
JSON list of faults: `{"function", "fault", "message"}`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .score import load_plugin

GIVEN_BY_THE_TRAINER = (
    "messages", "prompt_id", "request_id", "finish_reason", "is_truncated", "rollout_infos",
    "response_token_ids", "trainer_state",
)  # fmt: skip
"""Keyword arguments besides the columns of the data set (ms-swift 4.6.0 swift/rl_core/data.py:135-155)."""


def faults_of(
    name: str, function: Any, rows: list[dict[str, Any]], completions: list[str]
) -> list[dict[str, str]]:
    """What is wrong with one function. `completions` has one entry per row."""
    columns = {key: [row.get(key) for row in rows] for key in rows[0]}
    given: dict[str, Any] = {key: [None] * len(rows) for key in GIVEN_BY_THE_TRAINER}
    given |= {
        "trainer_state": SimpleNamespace(global_step=0, max_steps=1),
        "finish_reason": ["stop"] * len(rows),
    }
    given |= {"is_truncated": [False] * len(rows), "response_token_ids": [[1, 2, 3]] * len(rows), **columns}
    missing = _missing_columns(function, given)
    if missing:
        names = ", ".join(sorted(columns))
        return [_fault(name, "signature", f"needs the columns {', '.join(missing)}; the data have {names}")]
    try:
        rewards = function(completions, **given)
        if inspect.isawaitable(rewards):
            rewards = asyncio.run(_finish(rewards))
    except Exception as error:  # whatever the plugin raises would end the training
        return [_fault(name, "exception", f"{type(error).__name__}: {error}")]
    return _check_rewards(name, rewards, len(completions))


async def _finish(rewards: Any) -> Any:
    return await rewards


def _missing_columns(function: Any, given: dict[str, Any]) -> list[str]:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(function).parameters.values())[1:]  # the first takes the completions
    needed = [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    return [parameter for parameter in needed if parameter not in given]


def _check_rewards(name: str, rewards: Any, count: int) -> list[dict[str, str]]:
    if not isinstance(rewards, list | tuple):
        return [
            _fault(
                name, "type", f"returns {type(rewards).__name__}, not a list with one number per completion"
            )
        ]
    if len(rewards) != count:
        why = "; a single one would be given to every completion" if len(rewards) == 1 else ""
        return [_fault(name, "length", f"returns {len(rewards)} rewards for {count} completions{why}")]
    wrong = [r for r in rewards if r is not None and (isinstance(r, bool | str) or not _is_number(r))]
    if wrong:
        return [_fault(name, "type", f"returns {wrong[0]!r}, which is not a number")]
    if all(reward is None for reward in rewards):
        return [_fault(name, "none", "returns None for every completion")]
    return []


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _fault(function: str, fault: str, message: str) -> dict[str, str]:
    return {"function": function, "fault": fault, "message": message}


def instantiate(name: str, known: dict[str, Any], args: SimpleNamespace) -> Any:
    """Make a reward function as the trainers do (ms-swift 4.6.0 rlhf_trainers/grpo_trainer.py:2215)."""
    found = known[name]
    if not inspect.isclass(found):
        return found
    make: Any = found
    return make(args=args) if "args" in inspect.signature(make).parameters else make()


def find_faults(request: dict[str, Any]) -> list[dict[str, str]]:
    """The faults of every function of a request."""
    if request["plugin"]:
        try:
            load_plugin(request["plugin"])
        except (Exception, SystemExit) as error:  # an import runs the plugin's own code
            return [_fault(request["plugin"], "plugin", f"{type(error).__name__}: {error}")]
    from swift.rewards import orms  # noqa: PLC0415 - after the plugin

    rows = [row for row in request["rows"] for _ in request["completions"]]
    completions = [text for _ in request["rows"] for text in request["completions"]]
    faults: list[dict[str, str]] = []
    for name in request["functions"]:
        if name not in orms:
            faults.append(_fault(name, "registered", f"known are {', '.join(sorted(orms))}"))
            continue
        try:
            function = instantiate(name, orms, SimpleNamespace(**request["args"]))
        except Exception as error:
            faults.append(_fault(name, "exception", f"{type(error).__name__}: {error}"))
            continue
        faults += faults_of(name, function, rows, completions)
    return faults


def main(argv: list[str]) -> int:
    request = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    Path(request["result"]).write_text(json.dumps(find_faults(request)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
