"""The texts of `rules.json`: findings that come from numbers and pictures, not from one known line."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from .findings import Finding

FILE = Path(__file__).with_name("rules.json")


@lru_cache
def rules() -> dict[str, dict[str, str]]:
    """Kind, why, fix and evidence by rule name."""
    texts: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return texts


def finding(name: str, path: Path, line: int | None, text: str, role: str = "", **values: str) -> Finding:
    """Make a finding of a rule. `values` fill the {names} of its texts."""
    filled = {key: value.format_map(values) for key, value in rules()[name].items()}
    kind = filled.pop("kind")
    return Finding(
        id=name,
        kind=kind,  # type: ignore[arg-type]  # a test checks the file
        file=str(path),
        line=line,
        text=text,
        role=role or "trainer",
        **filled,  # type: ignore[arg-type]
    )
