"""A diagnosis as text for people."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Sequence

from .findings import Diagnosis, Finding

COLOURS = {
    "cause": "\x1b[1;31m",
    "consequence": "\x1b[2m",
    "slow": "\x1b[33m",
    "warning": "\x1b[36m",
    "earlier": "\x1b[2m",
}
RESET = "\x1b[0m"
TITLES = {
    "cause": "OTHER CAUSES",
    "consequence": "CONSEQUENCES, with nothing to repair",
    "slow": "SLOW",
    "warning": "WARNINGS",
    "earlier": "EARLIER, and the run went on or was started again",
}
LABELS = ("saw", "why", "fix", "see")


def render(diagnosis: Diagnosis, colour: bool, width: int) -> str:
    """Lay a diagnosis out: the first cause on top, then the rest by kind, then notes."""
    blocks: list[str] = []
    first = diagnosis.first_cause
    if first:
        blocks.append(f"FIRST CAUSE\n{_full(first, colour, width)}")
    elif any(finding.kind == "consequence" for finding in diagnosis.findings):
        only = "No cause in these files, only what follows from one: add the logs of the other processes."
        blocks.append(textwrap.fill(only, width))
    elif not diagnosis.judged:
        blocks.append("Nothing to judge: no log and no metrics that could be read.")
    elif not diagnosis.findings:
        blocks.append(
            "Nothing wrong found in what could be read." if diagnosis.unread else "Nothing wrong found."
        )
    elif all(finding.kind == "earlier" for finding in diagnosis.findings):
        blocks.append("Nothing wrong found after what was earlier.")
    for kind, title in TITLES.items():
        findings = [
            finding for finding in diagnosis.findings if finding.kind == kind and finding is not first
        ]
        if findings and kind == "consequence":
            blocks.append("\n".join([title, *_table(findings, colour, width)]))
        elif findings:
            blocks.append("\n".join([title, *(_full(finding, colour, width) for finding in findings)]))
    if diagnosis.unread:
        blocks.append("\n".join(_wrapped("not read  ", entry, width) for entry in diagnosis.unread))
    if diagnosis.notes:
        blocks.append("\n".join(_wrapped("note  ", note, width) for note in diagnosis.notes))
    return "\n\n".join(blocks)


def _full(finding: Finding, colour: bool, width: int) -> str:
    head = "  ".join([finding.id, _place(finding), finding.role, *_details(finding)])
    rows = [_painted(f"  {head}", finding, colour)]
    for label, text in zip(LABELS, (finding.text, finding.why, finding.fix, finding.evidence), strict=True):
        if text:
            rows.append(_wrapped(f"    {label}  ", text, width))
    return "\n".join(rows)


def _table(findings: Sequence[Finding], colour: bool, width: int) -> list[str]:
    name = max(len(finding.id) for finding in findings)
    place = max(len(_place(finding)) for finding in findings)
    rows = []
    for finding in findings:
        row = f"  {finding.id:<{name}}  {_place(finding):<{place}}  {finding.text}"
        rows.append(_painted(row[:width].rstrip(), finding, colour))
    return rows


def _painted(text: str, finding: Finding, colour: bool) -> str:
    return f"{COLOURS[finding.kind]}{text}{RESET}" if colour else text


def _place(finding: Finding) -> str:
    """The file, as seen from here if that is shorter, and the line."""
    path = min(finding.file, os.path.relpath(finding.file), key=len)
    return f"{path}:{finding.line}" if finding.line else path


def _details(finding: Finding) -> list[str]:
    details = []
    if finding.when is not None:
        details.append(time.strftime("%m-%d %H:%M:%S", time.localtime(finding.when)))
    if finding.count > 1:
        details.append(f"{finding.count} times")
    return details


def _wrapped(label: str, text: str, width: int) -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
