"""Score completions with the reward functions of training.

    python -m grpoflow.training_env.score REQUEST.json

The request holds `plugin` (path or null), `functions` (names) and `files`, each with `rows` (JSONL with
`completion` and the columns of the data set) and `result` (JSONL, one `{function: reward}` per row).
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Any

BATCH = 512


def load_plugin(path: str) -> None:
    """Import a reward plugin; importing registers its functions in `swift.rewards.orms`."""
    spec = importlib.util.spec_from_file_location("reward_plugin", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["reward_plugin"] = module
    spec.loader.exec_module(module)


def reward_function(name: str) -> Any:
    """Instantiate a reward function as the trainers do (swift/rlhf_trainers/grpo_trainer.py)."""
    from swift.rewards import orms  # noqa: PLC0415 - after the plugin

    if name not in orms:
        raise SystemExit(f"reward function {name!r} is not registered; known: {', '.join(sorted(orms))}")
    found: Any = orms[name]
    if not inspect.isclass(found):
        return found
    make: Any = found
    return make(args=None) if "args" in inspect.signature(make).parameters else make()


def score(function: Any, rows: list[dict[str, Any]]) -> list[float]:
    """Call a reward function on a batch: columns become keyword lists, as in training.

    Raises:
        SystemExit: it returned another number of rewards than there are rows. A list of length 1 would be
            broadcast to every completion without a word.
    """
    columns = {name: [row.get(name) for row in rows] for name in rows[0] if name != "completion"}
    rewards = function([row["completion"] for row in rows], **columns)
    if len(rewards) != len(rows):
        raise SystemExit(f"{function} returned {len(rewards)} rewards for {len(rows)} completions")
    return [float("nan") if reward is None else float(reward) for reward in rewards]


def main(argv: list[str]) -> int:
    request = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    if request["plugin"]:
        load_plugin(request["plugin"])
    functions = {name: reward_function(name) for name in request["functions"]}
    for file in request["files"]:
        with Path(file["rows"]).open(encoding="utf-8") as content:
            rows = [json.loads(line) for line in content]
        with Path(file["result"]).open("w", encoding="utf-8") as result:
            for start in range(0, len(rows), BATCH):
                batch = rows[start : start + BATCH]
                scores = {name: score(function, batch) for name, function in functions.items()}
                for index in range(len(batch)):
                    result.write(json.dumps({name: values[index] for name, values in scores.items()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
