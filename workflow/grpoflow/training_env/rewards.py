"""Reward functions as the trainers find, make and call them."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

GIVEN_BY_THE_TRAINER = (
    "messages", "prompt_id", "request_id", "finish_reason", "is_truncated", "rollout_infos",
    "response_token_ids", "trainer_state",
)  # fmt: skip
"""Keyword arguments besides the columns of the data set (ms-swift 4.6.0 swift/rl_core/data.py:135-155)."""

MEDIA = ("images", "videos", "audios", "tools", "objects")
"""Columns that a row may lack although a reward function takes them."""


def load_plugin(path: str) -> None:
    """Import a reward plugin; importing registers its functions in `swift.rewards.orms`."""
    spec = importlib.util.spec_from_file_location("reward_plugin", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["reward_plugin"] = module
    spec.loader.exec_module(module)


def registered(plugin: str | None) -> dict[str, Any]:
    """Every reward function by name, those of the plugin included."""
    if plugin:
        load_plugin(plugin)
    from swift.rewards import orms  # noqa: PLC0415 - after the plugin

    found: dict[str, Any] = orms
    return found


def instantiate(found: Any, args: Mapping[str, Any]) -> Any:
    """Make a reward function as the trainers do (ms-swift 4.6.0 rlhf_trainers/grpo_trainer.py:2215)."""
    if not inspect.isclass(found):
        return found
    make: Any = found
    if "args" in inspect.signature(make).parameters:
        return make(args=SimpleNamespace(**args))
    return make()


def parameters_of(function: Any) -> tuple[list[str], list[str]]:
    """Names that a reward function cannot do without, and names that it takes if they are there."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds][1:]
    needed = [p.name for p in named if p.default is inspect.Parameter.empty]
    return needed, [p.name for p in named if p.name not in needed]


def columns_of(function: Any) -> tuple[list[str], list[str]]:
    """Columns of the data set that a reward function needs, and those that it may use."""
    given = (*GIVEN_BY_THE_TRAINER, *MEDIA)
    needed, optional = parameters_of(function)
    return [n for n in needed if n not in given], [n for n in optional if n not in given]


def keyword_arguments(
    rows: Sequence[Mapping[str, Any]], completions: Sequence[str], tokens: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """What the trainer passes beside the completions: one list per column.

    Args:
        rows: Rows of the data set, one per completion.
        tokens: Token ids of each completion.
    """
    count = len(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        "trainer_state": SimpleNamespace(global_step=0, max_steps=1),
        "prompt_id": [f"prompt-{index}" for index in range(count)],
        "request_id": [f"request-{index}" for index in range(count)],
        "finish_reason": ["stop"] * count,
        "is_truncated": [False] * count,
        "rollout_infos": [{} for _ in range(count)],
        "response_token_ids": [[list(ids)] for ids in tokens],
        **{name: [row.get(name) for row in rows] for name in names},
        # the completion is the last message (swift/rl_core/grpo_algorithm.py:44)
        "messages": [
            [*row["messages"], {"role": "assistant", "content": completion}]
            for row, completion in zip(rows, completions, strict=True)
        ],
    }


def call(function: Any, completions: Sequence[str], arguments: Mapping[str, Any]) -> Any:
    """Call a reward function and wait for it, if it is asynchronous."""
    found = function(list(completions), **arguments)
    return asyncio.run(_finish(found)) if inspect.isawaitable(found) else found


async def _finish(awaitable: Any) -> Any:
    return await awaitable
