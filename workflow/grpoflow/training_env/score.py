"""Score completions with the reward functions of training.

    python -m grpoflow.training_env.score REQUEST.json

The request holds `plugin` (path or null), `functions` (names), `args` (arguments of the trainer that
built-in functions read), `tokenizer` (directory), `prefix` (what the template puts before every completion)
and `files`, each with `rows` (JSONL with `completion` and the columns of the data set) and `result` (JSONL,
per row `{"rewards": {function: reward or null}, "tokens": length without the prefix}`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from .rewards import call, instantiate, keyword_arguments, registered

BATCH = 512


def score(
    function: Any, rows: Sequence[dict[str, Any]], tokens: Sequence[Sequence[int]]
) -> list[float | None]:
    """Call a reward function on a batch, as in training.

    Raises:
        SystemExit: it returned another number of rewards than there are rows. A list of length 1 would be
            broadcast to every completion without a word.
    """
    completions = [row["completion"] for row in rows]
    columns = [{name: value for name, value in row.items() if name != "completion"} for row in rows]
    rewards = list(call(function, completions, keyword_arguments(columns, completions, tokens)))
    if len(rewards) != len(rows):
        raise SystemExit(f"{function} returned {len(rewards)} rewards for {len(rows)} completions")
    return [None if reward is None else float(reward) for reward in rewards]


def main(argv: list[str]) -> int:
    request = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    known = registered(request["plugin"])
    unknown = sorted(set(request["functions"]) - known.keys())
    if unknown:
        raise SystemExit(
            f"reward functions {', '.join(unknown)} are not registered; known: {', '.join(known)}"
        )
    functions = {name: instantiate(known[name], request["args"]) for name in request["functions"]}
    tokenizer = AutoTokenizer.from_pretrained(request["tokenizer"])
    for file in request["files"]:
        with Path(file["rows"]).open(encoding="utf-8") as content:
            rows = [json.loads(line) for line in content]
        with Path(file["result"]).open("w", encoding="utf-8") as result:
            for start in range(0, len(rows), BATCH):
                batch = rows[start : start + BATCH]
                generated = [row["completion"].removeprefix(request["prefix"]) for row in batch]
                tokens = tokenizer(generated, add_special_tokens=False).input_ids
                scores = {name: score(function, batch, tokens) for name, function in functions.items()}
                for index, ids in enumerate(tokens):
                    rewards = {name: values[index] for name, values in scores.items()}
                    result.write(json.dumps({"rewards": rewards, "tokens": len(ids)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
