"""`grpoflow preflight`: everything that is wrong with a configuration, in about a second."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpoflow.config import ConfigError, read_yaml
from grpoflow.config.load import merge
from grpoflow.preflight import Report, check_raw
from grpoflow.preflight.rules import Need
from grpoflow.preflight.run import from_config
from grpoflow.preflight.text import report_text

from . import REFUSED, usage


def run(paths: Sequence[Path], form: str, *, data: bool, checkpoint: bool) -> int:
    """Print the report; return the exit code."""
    unreadable = unreadable_files(paths)
    if unreadable:
        return usage(unreadable)
    needs: list[Need] = ["config"]
    needs += ["checkpoint"] if checkpoint else []
    needs += ["data"] if data else []
    try:
        raw = merged(paths)
    except ConfigError as error:
        report = from_config(error.problems)
    else:
        _, report = check_raw(raw, needs=tuple(needs))
    print_report(report, form)
    return REFUSED if report.verdict == "refuse" else 0


def unreadable_files(paths: Sequence[Path]) -> str:
    """What is wrong with the paths as such; "" if nothing is."""
    return "; ".join(f"{path} is not a file" for path in paths if not path.is_file())


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """Read the files and lay each over those before it.

    Raises:
        ConfigError: with the problems of every file that is not a YAML mapping.
    """
    raw: dict[str, Any] = {}
    problems = []
    for path in paths:
        try:
            raw = merge(raw, read_yaml(path))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return raw


def print_report(report: Report, form: str) -> None:
    if form == "json":
        print(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        print(report_text(report, sys.stdout.isatty()))
