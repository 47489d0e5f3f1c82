"""What preflight answers: one shape for every problem, from a misspelt key to a layout that cannot fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any, Literal

Level = Literal["refuse", "warn"]
Verdict = Literal["ok", "warn", "refuse"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        id: Name of the check, as `preflight.suppress` takes it.
        level: "refuse" stops the workflow: the job would fail, or learn something else than asked for.
        key: The key of the configuration whose change repairs it.
        value: The value found.
        why: The rule with its numbers, and what happens when it is broken.
        evidence: Source file of the released package, issue or paper that shows it.
        legal: Legal values of the key with everything else unchanged, nearest first; may be empty.
        experiment: Name of the experiment, "-" where it concerns the file as a whole.
    """

    id: str
    level: Level
    key: str
    value: object
    why: str
    evidence: str
    legal: tuple[object, ...]
    experiment: str

    def to_json(self) -> dict[str, Any]:
        """Plain data; values that JSON does not know become text."""
        return {**asdict(self), "value": _plain(self.value), "legal": [_plain(item) for item in self.legal]}


@dataclass(frozen=True)
class Suppressed:
    """A problem that the configuration says does not apply."""

    problem: Problem
    reason: str


@dataclass(frozen=True)
class Skipped:
    """Checks that could not run, and why."""

    checks: tuple[str, ...]
    why: str
    experiment: str


@dataclass(frozen=True)
class Report:
    """The result of preflight over all experiments."""

    problems: tuple[Problem, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """ "refuse" if any problem refuses, "warn" if any warns, else "ok"."""
        levels = {problem.level for problem in self.problems}
        return "refuse" if "refuse" in levels else "warn" if levels else "ok"

    def of(self, experiment: str) -> Report:
        """What concerns one experiment."""
        return Report(
            tuple(problem for problem in self.problems if problem.experiment in (experiment, "-")),
            tuple(item for item in self.suppressed if item.problem.experiment in (experiment, "-")),
            tuple(item for item in self.skipped if item.experiment in (experiment, "-")),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "problems": [problem.to_json() for problem in self.problems],
            "suppressed": [{**item.problem.to_json(), "reason": item.reason} for item in self.suppressed],
            "skipped": [asdict(item) for item in self.skipped],
        }


def join(reports: Iterable[Report]) -> Report:
    """All reports as one."""
    found = list(reports)
    return Report(
        tuple(problem for report in found for problem in report.problems),
        tuple(item for report in found for item in report.suppressed),
        tuple(item for report in found for item in report.skipped),
    )


def _plain(value: object) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, PurePath):
        return [_plain(item) for item in value]
    return str(value)
