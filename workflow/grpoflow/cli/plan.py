"""`grpoflow plan`: what will run where, what it needs and what it costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from grpoflow.config import Config, ConfigError
from grpoflow.launch.job import SubmissionFailed
from grpoflow.preflight import Report, check, check_raw
from grpoflow.preflight.run import from_config
from grpoflow.preflight.subject import Subject
from grpoflow.stages.allocation import ProfileError, asked_of_slurm, profile_resources, script_of
from grpoflow.stages.plan import plan_document

from . import REFUSED, usage
from .plan_text import plan_text
from .preflight import merged, print_report, unreadable_files


def run(paths: Sequence[Path], form: str, experiment: str | None) -> int:
    """Print the plan of one experiment, or of all; return the exit code."""
    found = _accepted(paths, form, experiment)
    if isinstance(found, int):
        return found
    configs, report = found
    try:
        documents = {
            name: plan_document(Subject(name, config), report.of(name)) for name, config in configs.items()
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


def sbatch(paths: Sequence[Path], experiment: str | None, profile: Path) -> int:
    """Print the script of the RL job of one experiment, or of all; on standard error what Slurm says to it.

    Returns 0, 1 when the configuration or the job would be refused, 2 for a profile that cannot be read.
    """
    found = _accepted(paths, "text", experiment)
    if isinstance(found, int):
        return found
    code = 0
    for name, config in found[0].items():
        try:
            resources = profile_resources(profile, config)
        except (OSError, ConfigError, ProfileError) as error:
            return usage(f"--profile {profile}: {error}")
        report = check({name: config}, resources=resources)
        if report.verdict == "refuse":
            print_report(report, "text")
            return REFUSED
        try:
            script = script_of(name, config, resources)
            print(script, end="")
            print(f"grpoflow: {name}: {asked_of_slurm(script)}", file=sys.stderr)
        except SubmissionFailed as error:
            print(f"grpoflow: {name}: {error}", file=sys.stderr)
            code = REFUSED
    return code


def _accepted(
    paths: Sequence[Path], form: str, experiment: str | None
) -> tuple[dict[str, Config], Report] | int:
    """The wanted experiments and what was found about them, or the exit code when there are none."""
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
    return {name: config for name, config in configs.items() if experiment in (None, name)}, report
