"""The dry run of the reward functions: real rows, and completions as a model may make them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpoflow.commands.rewards import reward_request
from grpoflow.config import Config
from grpoflow.files import read_json, write_json
from grpoflow.readers import records

from .base import Stage, StageFailed
from .inside import inside

ROWS = 8
START_SECONDS = 300.0
"""For the imports of ms-swift on a busy file system, and of the plugin."""


def adversarial(config: Config) -> dict[str, str]:
    """Completions that a reward function must survive, by kind."""
    longest = config.trainer.max_completion_length
    return {
        "empty": "",
        "blank": " \n\t",
        "no tags": "I do not know.",
        "one symbol": "!" * longest,
        "very long": "so then 4 " * longest,
        "not ASCII": "答案是四。 Ответ: ٤ ½ \U0001f642 e\u0301",
        "control characters": "\x00\x07\x1b[31m4",
        "open thinking": "<think>\nlet me see",
        "tags without content": "<answer></answer>",
        "text in the tags": "<answer>x</answer>",
        "two answers": "<answer>4</answer><answer>5</answer>",
        "box that is not closed": "\\boxed{4",
        "format characters": "{0} %s $\\frac{1}{0}$",
    }


def try_rewards(stage: Stage, work: Path, train: Path, prefix: str) -> dict[str, Any]:
    """Call every reward function; return what it took and gave.

    `prefix` is what the template puts before every completion: the reward functions see it.

    Raises:
        StageFailed: a function fails, is too slow, or cannot tell `data.reward_examples` apart; the message
        has
            every fault.
    """
    config, limit = stage.config, stage.config.data.reward_seconds
    request, result = work / "try.json", work / "tried.json"
    with train.open(encoding="utf-8") as content:
        rows = [json.loads(line) for line in itertools.islice(content, ROWS)]
    completions = {kind: prefix + text for kind, text in adversarial(config).items()}
    write_json(
        request,
        {
            **reward_request(config),
            "rows": rows,
            "completions": completions,
            "seconds": limit,
            "weights": config.rewards.weight_of(),
            "examples": _examples(config.data.reward_examples, prefix),
            "result": str(result),
        },
    )
    calls = len(config.rewards.functions) * (1 + len(completions))
    stage.run(
        "try_rewards", inside(stage, "try_rewards", request), _no_longer_than(START_SECONDS + calls * limit)
    )
    found = read_json(result)
    for path in (request, result):
        path.unlink()
    if found["faults"]:
        listed = "\n".join(f"  {fault['function']}: {fault['message']}" for fault in found["faults"])
        raise StageFailed(f"the reward functions failed in a dry run\n{listed}")
    calls_of: dict[str, Any] = found["calls"]
    return calls_of


def _examples(path: str | None, prefix: str) -> list[dict[str, Any]]:
    """Rows with `right` and `wrong`, each a list of completions.

    Raises:
        StageFailed: a row lacks one of them.
    """
    found = []
    for number, row, reason in records(Path(path)) if path else ():
        sides = {}
        for name in ("right", "wrong"):
            given = row.get(name) if isinstance(row, dict) else None
            texts = [given] if isinstance(given, str) else given
            if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
                sides[name] = [prefix + text for text in texts]
        if reason or len(sides) < 2 or not row.get("messages"):
            why = reason or "right and wrong are completions, or lists of them, and messages is the prompt"
            raise StageFailed(f"data.reward_examples: {path}, row {number}: {why}")
        found.append({**row, **sides})
    return found


def _no_longer_than(seconds: float) -> Callable[[], str]:
    """A progress report that ends the program: one that hangs in C code cannot be interrupted from inside."""
    end = time.monotonic() + seconds

    def watch() -> str:
        if time.monotonic() > end:
            raise StageFailed(
                f"a reward function, or the import of its plugin, hangs: no end within {seconds:.0f} s"
            )
        return ""

    return watch
