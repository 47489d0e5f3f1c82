"""Building argument lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpoflow.config import Config


@dataclass(frozen=True)
class Command:
    """One external program: what is executed, and what is added to a clean environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def flags(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Write arguments as `--name value` in the form that HfArgumentParser reads.

    None is left out: a YAML null given as text would become the string "None" (swift/cli/main.py:66).
    Names are always complete, since argparse accepts abbreviations and would hide a misspelt one.
    """
    argv: list[str] = []
    for name, value in arguments.items():
        if value is None:
            continue
        argv.append(f"--{name}")
        argv += [_text(item) for item in value] if isinstance(value, list | tuple) else [_text(value)]
    return tuple(argv)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)


def program(config: Config, name: str, *subcommand: str) -> tuple[str, ...]:
    """Name a program of the training environment by its absolute path."""
    return (str(Path(config.cluster.environment).absolute() / "bin" / name), *subcommand)
