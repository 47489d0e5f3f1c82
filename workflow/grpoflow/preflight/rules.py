"""The registry of checks.

A check is a function that yields findings about one experiment. Its name is its id, the first paragraph of
its docstring says what it protects from, the decorator gives its evidence and what it needs to run. A check
that hands on the rules of :mod:`grpoflow.plan` stands for several ids, declared in a table beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from .report import Level
from .subject import Subject

Need = Literal["config", "architecture", "checkpoint", "data"]
"""What a check reads: the configuration alone, config.json of the checkpoint, its other files, the data."""


@dataclass(frozen=True)
class Finding:
    """A problem that a check found; `rule` is the id where a check stands for several, `level` and `evidence`
    those of the rule unless given."""

    key: str
    value: object
    why: str
    legal: tuple[object, ...] = ()
    level: Level | None = None
    rule: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Rule:
    """What a person can read about a check."""

    id: str
    level: Level
    protects: str
    evidence: str


@dataclass(frozen=True)
class Check:
    """A function and the rules it stands for."""

    needs: Need
    rules: tuple[Rule, ...]
    find: Callable[[Subject], Iterable[Finding]]

    @property
    def id(self) -> str:
        """The id of findings that name none."""
        return self.rules[0].id


CHECKS: list[Check] = []

Find = Callable[[Subject], Iterable[Finding]]


def rule(evidence: str, level: Level = "refuse", needs: Need = "config") -> Callable[[Find], Find]:
    """Register a function as one check."""

    def register(find: Find) -> Find:
        sentence = " ".join((inspect.getdoc(find) or "").split("\n\n")[0].split())
        protects = sentence.removeprefix("Protects from ").removesuffix(".")
        CHECKS.append(Check(needs, (Rule(find.__name__, level, protects, evidence),), find))
        return find

    return register


def rules(table: Mapping[str, tuple[str, str]], needs: Need = "config") -> Callable[[Find], Find]:
    """Register a function that stands for several ids: {id: (what it protects from, evidence)}."""

    def register(find: Find) -> Find:
        found = tuple(Rule(id, "refuse", protects, evidence) for id, (protects, evidence) in table.items())
        CHECKS.append(Check(needs, found, find))
        return find

    return register


def all_rules() -> dict[str, Rule]:
    """Every rule by its id."""
    return {rule.id: rule for check in CHECKS for rule in check.rules}
