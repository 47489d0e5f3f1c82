"""Checks that the configuration switches off."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from .rules import Finding, all_rules, rule
from .subject import Subject


@rule(evidence="config/README.md, section preflight")
def suppressed_check_exists(subject: Subject) -> Iterator[Finding]:
    """Protects from a check that is believed to be switched off under a misspelt name."""
    known = all_rules()
    for name, reason in subject.config.preflight.suppress.items():
        if name not in known:
            near = tuple(difflib.get_close_matches(name, known, n=3))
            yield Finding(f"preflight.suppress.{name}", reason, "no check has this id", near)
