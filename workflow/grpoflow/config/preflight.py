"""Section `preflight`: checks that are switched off, each with a reason."""

from __future__ import annotations

from pydantic import field_validator

from .base import Section, execution


class PreflightConfig(Section):
    suppress: dict[str, str] = execution({})
    """Checks to leave out: the id of the check and the reason, which the plan shows. A reason is required."""

    @field_validator("suppress")
    @classmethod
    def every_one_has_a_reason(cls, suppress: dict[str, str]) -> dict[str, str]:
        for name, reason in suppress.items():
            if not reason.strip():
                raise ValueError(f"say why {name} does not apply, e.g. {name}: measured, it fits")
        return suppress
