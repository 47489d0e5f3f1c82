"""The known texts of `patterns.json`, compiled.

Each entry of the file:

id          name of the finding
kind        cause, consequence, slow or warning
level       of a cause: 0 explains itself; 1 a process ended without saying why; 2 only the wait for somebody
            else (an NCCL time-out, a refused connection). See `order.first`
role        where the text is usually seen, shown when the file name does not tell
traceback_only  the text counts only as the end of an unhandled traceback (libraries log it and go on)
lasting     a training that goes on does not make it harmless
gpu_only    means nothing in a run without a GPU
triggers    plain texts of which one is in every matching line, shared by many patterns (the message of an
            exception stands behind "Error"): the test of a whole block of a log. `literals` if absent
literals    plain texts of which one is in every matching line: the cheap test of a line before `regex`
exclude     a line that matches this is not meant
context     the traceback above the line must match this
why, fix    {name} stands for a named group of `regex`
sample      a real line (or a traceback that ends in it)

The first entry that matches a line explains it, so special texts stand before general ones.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .findings import Kind
from .tracebacks import EXCEPTION, split

FILE = Path(__file__).with_name("patterns.json")


@dataclass(frozen=True)
class Pattern:
    """One entry of `patterns.json`."""

    id: str
    kind: Kind
    level: int
    role: str
    traceback_only: bool
    lasting: bool
    gpu_only: bool
    triggers: tuple[bytes, ...]
    literals: tuple[bytes, ...]
    regex: re.Pattern[str]
    exclude: re.Pattern[str] | None
    context: re.Pattern[str] | None
    why: str
    fix: str
    evidence: str
    sample: str

    @property
    def is_exception(self) -> bool:
        """Whether the text is the message of an exception."""
        return EXCEPTION.match(split(self.sample.splitlines()[-1]).body) is not None

    def match(self, text: str, body: str) -> re.Match[str] | None:
        """Match a line; `body` is the traceback above it, "" if there is none."""
        found = self.regex.search(text)
        if found is None or (self.exclude and self.exclude.search(text)):
            return None
        if self.context and not self.context.search(body):
            return None
        return found


@lru_cache
def patterns() -> tuple[Pattern, ...]:
    """All patterns, in the order in which they are tried."""
    return tuple(_pattern(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8")))


def _pattern(
    *,
    id: str,
    kind: Kind,
    role: str,
    literals: list[str],
    regex: str,
    why: str,
    fix: str,
    evidence: str,
    sample: str,
    level: int = 0,
    traceback_only: bool = False,
    lasting: bool = False,
    gpu_only: bool = False,
    triggers: list[str] | None = None,
    exclude: str = "",
    context: str = "",
) -> Pattern:
    return Pattern(
        id=id,
        kind=kind,
        level=level,
        role=role,
        traceback_only=traceback_only,
        lasting=lasting,
        gpu_only=gpu_only,
        triggers=tuple(text.encode() for text in triggers or literals),
        literals=tuple(literal.encode() for literal in literals),
        regex=re.compile(regex),
        exclude=re.compile(exclude) if exclude else None,
        context=re.compile(context) if context else None,
        why=why,
        fix=fix,
        evidence=evidence,
        sample=sample,
    )


@lru_cache
def triggers() -> tuple[bytes, ...]:
    """The triggers of all patterns, without those that contain another one.

    Searching a megabyte for one text takes up to half a millisecond, so there are few.
    """
    wanted = {text for known in patterns() for text in known.triggers}
    return tuple(sorted(t for t in wanted if not any(other in t for other in wanted if other != t)))


def filled(template: str, match: re.Match[str]) -> str:
    """Put the named groups of a match into a text of `patterns.json`."""
    for name, value in match.groupdict().items():
        template = template.replace(f"{{{name}}}", value or "?")
    return template
