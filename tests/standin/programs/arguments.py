"""Reading a command line that the launcher has checked."""

from __future__ import annotations

import os
from collections.abc import Sequence


def read(argv: Sequence[str]) -> dict[str, list[str]]:
    """Every `--name` with its values."""
    values: dict[str, list[str]] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name = word[2:]
            values[name] = []
        else:
            values[name].append(word)
    return values


def seconds(name: str, default: float) -> float:
    """A speed of the stand-in."""
    return float(os.environ.get(f"STANDIN_{name}", default))
