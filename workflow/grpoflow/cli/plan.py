"""`grpoflow plan`: what will run where, what it needs and what it costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from grpoflow.config import ConfigError
from grpoflow.preflight import check_raw
from grpoflow.preflight.run import DEFAULT_WALL_TIME, from_config
from grpoflow.preflight.subject import Subject
from grpoflow.stages.plan import plan_document

from . import REFUSED, usage
from .plan_text import plan_text
from .preflight import merged, print_report, unreadable_files


def run(paths: Sequence[Path], form: str, experiment: str | None) -> int:
    """Print the plan of one experiment, or of all; return the exit code."""
    unreadable = unreadable_files(paths)
    if unreadable:
        return usage(unreadable)
    try:
        configs, report = check_raw(merged(paths))
    except ConfigError as error:
        configs, report = {}, from_config(error.problems)
    if configs and experiment is not None and experiment not in configs:
        return usage(f"no experiment {experiment!r}; there are {', '.join(configs)}")
    wanted = report.of(experiment) if experiment else report
    if wanted.verdict == "refuse":
        print_report(wanted, form)
        return REFUSED
    try:
        documents = {
            name: plan_document(Subject(name, config, DEFAULT_WALL_TIME), report.of(name))
            for name, config in configs.items()
            if experiment in (None, name)
        }
    except ValueError as error:
        print(f"grpoflow: there is no plan; a check that refuses is switched off: {error}", file=sys.stderr)
        return REFUSED
    if form == "json":
        value = next(iter(documents.values())) if len(documents) == 1 else {"experiments": documents}
        print(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(plan_text(document, sys.stdout.isatty()) for document in documents.values()))
    return 0
