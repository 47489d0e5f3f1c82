"""Running the checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpoflow.config import Config, ConfigError, load_experiments, read_yaml
from grpoflow.config.load import Problem as ConfigProblem

# the import registers the checks
from . import (  # noqa: F401
    arguments,
    batch,
    checkpoint,
    data,
    job,
    layout,
    memory,
    model,
    outcome,
    resume,
    rewards,
    rollout,
    stack,
    suppress,
    versions,
)
from .report import Problem, Report, Skipped, Suppressed, join
from .rules import CHECKS, Finding, Need, all_rules
from .subject import Subject
from .text import report_text

NOTHING_KNOWN: Mapping[str, Any] = {}


class Refused(ValueError):
    """The configuration is refused; the text is the report."""


NEEDED = suppress.plan_can_be_made.__name__
CONFIGURATION = "the typed configuration (config/README.md)"


def check(
    configs: Mapping[str, Config],
    needs: tuple[Need, ...] = ("config",),
    resources: Mapping[str, Any] = NOTHING_KNOWN,
) -> Report:
    """Run the checks that need the configuration, and config.json of the checkpoint where it is there.

    Args:
        configs: Experiments by name.
        needs: Which kinds of checks to run besides those about the architecture.
        resources: Those of the rule train_grpo.
    """
    return join(_check_one(Subject(name, config, resources), needs) for name, config in configs.items())


def check_raw(
    raw: Mapping[str, Any],
    needs: tuple[Need, ...] = ("config",),
    resources: Mapping[str, Any] = NOTHING_KNOWN,
) -> tuple[dict[str, Config], Report]:
    """Validate a configuration as read from its files, and check it; no configuration where it is refused."""
    try:
        configs = load_experiments(raw)
    except ConfigError as error:
        return {}, from_config(error.problems)
    return configs, check(configs, needs, resources)


def refuse_faults(raw: Mapping[str, Any], files: Iterable[Path] = ()) -> None:
    """Check a configuration where only a refusal matters: when Snakemake reads the workflow.

    Args:
        raw: As Snakemake merged it.
        files: Those it comes from: what they give twice is not there any more.

    Raises:
        Refused: with the whole report.
    """
    report = from_config(problem for path in files for problem in _of_file(path))
    if report.verdict != "refuse":
        _, report = check_raw(raw)
    if report.verdict == "refuse":
        raise Refused(f"the configuration is refused\n\n{report_text(report)}")


def _of_file(path: Path) -> list[ConfigProblem]:
    try:
        read_yaml(path)
    except ConfigError as error:
        return error.problems
    return []


def from_config(problems: Iterable[ConfigProblem]) -> Report:
    """The problems of an invalid configuration."""
    return Report(
        tuple(
            Problem(
                p.id,
                "refuse",
                p.key,
                p.value,
                p.why,
                CONFIGURATION,
                (p.legal,) if p.legal else (),
                p.experiment,
            )
            for p in problems
        )
    )


def _check_one(subject: Subject, needs: tuple[Need, ...]) -> Report:
    reasons = subject.config.preflight.suppress
    problems: list[Problem] = []
    suppressed: list[Suppressed] = []
    skipped: list[str] = []
    for item in CHECKS:
        if item.needs == "architecture":
            if subject.architecture is None:
                skipped += [rule.id for rule in item.rules]
                continue
        elif item.needs not in needs:
            continue
        for finding in item.find(subject):
            problem = _problem(subject, finding, item.id)
            if problem.id in reasons and problem.id != NEEDED:
                suppressed.append(Suppressed(problem, reasons[problem.id]))
            else:
                problems.append(problem)
    if any(problem.level == "refuse" and problem.id != NEEDED for problem in problems):
        problems = [problem for problem in problems if problem.id != NEEDED]
    absent = (Skipped(tuple(skipped), subject.no_architecture, subject.experiment),) if skipped else ()
    return Report(tuple(problems), tuple(suppressed), absent)


def _problem(subject: Subject, finding: Finding, check_id: str) -> Problem:
    rule = all_rules()[finding.rule or check_id]
    return Problem(
        id=rule.id,
        level=finding.level or rule.level,
        key=finding.key,
        value=finding.value,
        why=finding.why,
        evidence=finding.evidence or rule.evidence,
        legal=finding.legal,
        experiment=subject.experiment,
    )
