"""The data sets of a configuration, read once."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from grpoflow.readers import DataError, records
from grpoflow.rows import Row, normalise

TOKENIZE_SECONDS = 120
SAMPLED = 5000
"""Rows whose tokens are counted, spread over the file."""

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
TEMPLATE_TOKENS = 5
"""Tokens of the template around a message: <|im_start|>role, line breaks, <|im_end|> [assumption]."""


@dataclass(frozen=True)
class DataSet:
    """Valid rows of a data set, and the reasons why others are not, with the first row of each.

    `unreadable` says why there are no rows at all; `here_only` that another environment can read them.
    """

    path: Path
    rows: tuple[Row, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, int] = field(default_factory=dict)
    unreadable: str = ""
    here_only: bool = False

    @property
    def columns(self) -> set[str]:
        """Columns that every valid row has."""
        found = [set(row) for row in self.rows]
        return set.intersection(*found) if found else set()

    @property
    def most_images(self) -> int:
        """Images of the row that has most."""
        return max((len(row.get("images") or []) for row in self.rows), default=0)


def read_dataset(path: str, *, answered: bool = False) -> DataSet:
    """Read a data set of any format that the workflow reads. Several checks ask; it is read once."""
    source = Path(path)
    changed = source.stat().st_mtime_ns if source.exists() else 0
    return _read(source, changed, answered)


@lru_cache(maxsize=8)
def _read(source: Path, _changed: int, answered: bool) -> DataSet:
    rows, rejected, examples = [], Counter[str](), dict[str, int]()
    try:
        for number, value, fault in records(source):
            row, reason = (None, fault) if fault else normalise(value, source.parent, answered=answered)
            if row is None:
                rejected[reason] += 1
                examples.setdefault(reason, number)
            else:
                rows.append(row)
    except DataError as error:
        return DataSet(source, unreadable=str(error))
    except ImportError as error:
        why = f"{source} needs {error.name} of the training environment; the stage cache_dataset reads it"
        return DataSet(source, unreadable=why, here_only=True)
    return DataSet(source, tuple(rows), dict(rejected), examples)


def prompt_lengths(rows: Sequence[Row], python: Path, tokenizer: Path, image_tokens: int) -> list[int] | None:
    """Tokens of a sample of prompts, the template estimated; None where they cannot be counted.

    The tokenizer runs in the training environment: this one has none.
    """
    if not python.is_file() or not tokenizer.is_file() or not rows:
        return None
    sample = rows[:: max(1, len(rows) // SAMPLED)]
    try:
        done = subprocess.run(
            [python, "-m", "grpoflow.training_env.token_lengths", tokenizer],
            input=json.dumps([_text(row) for row in sample]),
            capture_output=True,
            text=True,
            check=True,
            timeout=TOKENIZE_SECONDS,
            env={"PYTHONPATH": os.fspath(PACKAGE_ROOT), "PATH": os.environ.get("PATH", "")},
        )
        lengths = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return [
        int(length) + TEMPLATE_TOKENS * len(row["messages"]) + image_tokens * len(row.get("images") or [])
        for length, row in zip(lengths, sample, strict=True)
    ]


def _text(row: Row) -> str:
    parts = []
    for message in row["messages"]:
        content = message["content"]
        parts.append(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
    return "\n".join(parts)
