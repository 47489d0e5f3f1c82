"""Freeze the prompts of a run: valid rows in one form, measured with the template that training uses.

    python -m grpoflow.training_env.cache_prompts REQUEST.json

The request holds `template` (arguments of ms-swift that choose model and template), `sources` (for `val`
and `train`: path), `directory` (where the files are written), `final` (where they will lie),
`max_length` (longer prompts are rejected; null keeps them), `num_proc`, `plugin`, `functions`, `args` (the
reward functions, grpoflow.training_env.rewards), `plugin_seconds` and `result`. The result says what became
of the rows, what the template looks like, and which columns each reward function reads.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from swift.arguments import BaseArguments
from swift.utils import parse_args

from grpoflow.freeze import Measured, Media, NotEncodable, Prepared, Seen, freeze
from grpoflow.readers import DataError, Record
from grpoflow.rows import MEDIA_COLUMNS, Row

from .rewards import columns_of, instantiate, registered
from .try_rewards import TooSlow, limit

BATCHES_PER_PROCESS = 4

_template: Any = None
"""The template of this process. Its pool inherits it: it cannot be sent to another process."""


def measure(row: Row) -> Measured | NotEncodable:
    """Encode a prompt as the trainer does (swift/rl_core/resample.py): tokens with the images expanded, the
    generation prompt and the opened or empty thinking block included."""
    try:
        encoded = _template.encode(dict(row), return_length=True)
    except Exception as error:  # the trainer would drop such a row without telling which
        media = any(row.get(column) for column in MEDIA_COLUMNS)
        reason = "unreadable media" if media else "not encodable"
        return NotEncodable(reason, f"{type(error).__name__}: {error}"[:300])
    images = 0
    grid = encoded.get("image_grid_thw")
    if grid is not None:
        merge = _template.processor.image_processor.merge_size
        images = int(grid.prod(-1).sum()) // merge**2
    return Measured(max(encoded["lengths"]), images)


def load_template(arguments: Sequence[str]) -> Any:
    """Make the template as every program of ms-swift makes it, but without a limit of the length."""
    args, rest = parse_args(BaseArguments, list(arguments))
    if rest:
        raise SystemExit(f"not arguments of ms-swift: {rest}")
    template = args.get_template()
    template.max_length = None  # lengths are judged here
    template.set_mode("train")  # that of GRPO (swift/megatron/pipelines/train/rlhf.py, _prepare_template)
    return template


Work = Callable[[Sequence[Record]], list[Prepared]]


def spread_over(processes: int) -> Callable[[Work, Iterable[Sequence[Record]]], Iterator[list[Prepared]]]:
    """Make a `map` that shares work between processes, keeps its order, and reads no further ahead than the
    processes need. One process works by itself."""

    def spread(work: Work, batches: Iterable[Sequence[Record]]) -> Iterator[list[Prepared]]:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            waiting = deque[Any]()
            for batch in batches:
                waiting.append(pool.submit(work, batch))
                if len(waiting) >= BATCHES_PER_PROCESS * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    return map if processes == 1 else spread


def describe_template() -> dict[str, Any]:
    """What the model is shown before it answers."""
    example: Row = {"messages": [{"role": "user", "content": "PROMPT"}]}
    ids = _template.encode(example)["input_ids"]
    return {
        "type": _template.template_meta.template_type,
        "example": _template.tokenizer.decode(ids),
        "response_prefix": _template._get_response_prefix(),
        "vocabulary": len(_template.tokenizer),
    }


def reward_columns(request: dict[str, Any]) -> dict[str, Any]:
    """Columns that each reward function needs, and those that it may use.

    Raises:
        SystemExit: the plugin cannot be imported, or a function is not registered or cannot be made.
    """
    try:
        with limit(request["plugin_seconds"]):
            known = registered(request["plugin"])
    except TooSlow:
        raise SystemExit(
            f"{request['plugin']} was not imported within {request['plugin_seconds']} s"
        ) from None
    columns: dict[str, Any] = {}
    for name in request["functions"]:
        if name not in known:
            raise SystemExit(f"reward function {name!r} is not registered; known: {', '.join(sorted(known))}")
        needed, optional = columns_of(instantiate(known[name], request["args"]))
        columns[name] = {"needed": needed, "optional": optional}
    return columns


def main(argv: list[str]) -> int:
    request = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)  # the pool has a process per core
    columns = reward_columns(request)
    required = sorted({name for function in columns.values() for name in function["needed"]})
    global _template  # noqa: PLW0603 - see there
    _template = load_template(request["template"])
    directory = Path(request["directory"])
    seen, media = Seen(), Media(directory / "media", Path(request["final"]) / "media")
    splits: dict[str, Any] = {}
    with (directory / "rejected.jsonl").open("w", encoding="utf-8") as refused:
        # val first: a prompt that is in both is kept for evaluation and taken out of training
        for name in ("val", "train"):
            try:
                split = freeze(
                    name,
                    Path(request["sources"][name]),
                    directory / f"{name}.jsonl",
                    seen,
                    refused,
                    media=media,
                    measure=measure,
                    required=required,
                    max_length=request["max_length"],
                    spread=spread_over(request["num_proc"]),
                )
            except DataError as error:
                raise SystemExit(f"data.{name}: {error}") from error
            splits[name] = split.facts()
            print(f"{name}: {split.kept} rows kept, {split.rejected.total()} rejected", flush=True)
    result = {
        "splits": splits,
        "template": describe_template(),
        "reward_columns": columns,
        "required": required,
    }
    Path(request["result"]).write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
