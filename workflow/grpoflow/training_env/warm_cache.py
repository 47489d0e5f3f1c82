"""Load the frozen prompts through ms-swift, as every rank of the trainer does, and compare what arrives.

    python -m grpoflow.training_env.warm_cache REQUEST.json

Afterwards the cache that the training nodes share (MODELSCOPE_CACHE) has the data set: they only map it, and
do not race to build it. The request holds `dataset` (JSON Lines), `rows` (how many there must be), `columns`
(those that reward functions read), `num_proc` and `seed`, the same as in training.

Exit code 1 if rows are missing, or if a column holds other values than the file: `datasets` guesses types,
and a column of dates, such as "2020-01-01", arrives as datetime objects.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from swift.dataset import load_dataset

COMPARED = 1000


def differences(loaded: Any, path: Path, columns: list[str]) -> list[str]:
    """Describe the first changed value of each column, among the first rows of the file."""
    found: dict[str, str] = {}
    with path.open(encoding="utf-8") as content:
        for number, line in enumerate(content):
            if number == COMPARED:
                break
            row, arrived = json.loads(line), loaded[number]
            for name in columns:
                before, after = row.get(name), arrived.get(name)
                if before != after or type(before) is not type(after):
                    was, now = f"{before!r} ({type(before).__name__})", f"{after!r} ({type(after).__name__})"
                    found.setdefault(name, f"column {name}: {was} reaches the reward functions as {now}")
    return list(found.values())


def main(argv: list[str]) -> int:
    request = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    path = Path(request["dataset"])
    load = partial(
        load_dataset,
        [str(path)],
        split_dataset_ratio=0.0,
        num_proc=request["num_proc"],
        load_from_cache_file=True,
        remove_unused_columns=False,  # as GRPO sets it (swift/arguments/rlhf_args.py:349)
    )
    loaded, _ = load(shuffle=False)
    load(shuffle=True, seed=request["seed"])  # what the trainer loads: the order is a file of the cache too
    problems = []
    if len(loaded) != request["rows"]:
        problems.append(f"{len(loaded)} of {request['rows']} rows arrive in the trainer")
    problems += differences(loaded, path, request["columns"])
    print("\n".join(problems) or f"{len(loaded)} rows")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
