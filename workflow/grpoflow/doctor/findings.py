"""What the doctor says: findings, and the diagnosis that orders them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["cause", "consequence", "slow", "warning", "earlier"]
KINDS: tuple[Kind, ...] = ("cause", "consequence", "slow", "warning", "earlier")


@dataclass(frozen=True)
class Finding:
    """One thing that was seen.

    id: a name from `patterns.json`, or of a rule in `numbers.py` and `slowness.py`.
    kind: `earlier` is what looked like the end of a run that went on, or of an attempt before the last one.
    file, line: where it was seen; the line counts from 1, None for a fact about a whole file.
    text: the line that was seen, or the numbers. why, fix: one sentence or two each. evidence: public issues
    (repo#number) and source lines, "" if there are none.
    role: trainer, rollout, slurm or snakemake. when: seconds since the epoch, None if unknown. count: how
    often it was seen in all files.
    """

    id: str
    kind: Kind
    file: str
    line: int | None
    text: str
    why: str
    fix: str
    evidence: str
    role: str = "trainer"
    when: float | None = None
    count: int = 1

    def to_json(self) -> dict[str, str | int | None]:
        keys = ("id", "kind", "file", "line", "text", "why", "fix", "evidence")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Diagnosis:
    """All findings of some logs: the first cause, then other causes, consequences, slowness, warnings,
    earlier ends.

    first_cause: also the first of `findings`; None if no cause was found.
    notes: facts that are not findings, such as the step split and why a loss near zero is normal in GRPO.
    unread: what could not be read, or not to its end, and why. judged: something could be read; if not, that
    there are no findings says nothing.
    """

    first_cause: Finding | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    judged: bool = True

    def to_json(self) -> dict[str, object]:
        return {
            "first_cause": self.first_cause and self.first_cause.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
        }
