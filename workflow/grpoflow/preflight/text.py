"""The report for people."""

from __future__ import annotations

import textwrap
from dataclasses import replace

from .report import Problem, Report

WIDTH = 100
INDENT = 8
LONGEST_LEGAL = 160
COLOURS = {"refuse": "31", "warn": "33", "ok": "32", "dim": "2", "bold": "1"}


def paint(text: str, style: str, colour: bool) -> str:
    """Text in a colour of COLOURS, where colours are wanted."""
    return f"\x1b[{COLOURS[style]}m{text}\x1b[0m" if colour else text


def report_text(report: Report, colour: bool = False) -> str:
    """Every problem, then what was suppressed and skipped, then the verdict."""
    lines: list[str] = []
    for problem, experiments in _grouped(report.problems):
        lines += [*_problem(problem, experiments, colour), ""]
    for item in report.suppressed:
        text = f"{item.problem.key} ({item.problem.id}): {item.reason}"
        lines.append(paint(_wrap("off", text), "dim", colour))
    for why, names, number in _skipped(report):
        lines.append(paint(_wrap("skipped", f"{number} checks of {names}: {why}"), "dim", colour))
    if report.suppressed or report.skipped:
        lines.append("")
    levels = [problem.level for problem in report.problems]
    numbers = {
        "refused": levels.count("refuse"),
        "warned of": levels.count("warn"),
        "switched off": len(report.suppressed),
    }
    counts = [f"{number} {word}" for word, number in numbers.items() if number]
    verdict = ", ".join(counts) or "nothing found"
    lines.append(f"{paint(report.verdict, report.verdict, colour)}: {verdict}")
    return "\n".join(lines)


def _problem(problem: Problem, experiments: list[str], colour: bool) -> list[str]:
    where = "" if experiments in (["main"], ["-"]) else f"  [{', '.join(experiments)}]"
    head = f"{problem.key} = {_short(problem.value)}{where}"
    lines = [f"{paint(problem.level.ljust(INDENT), problem.level, colour)}{paint(head, 'bold', colour)}"]
    lines += _wrap("", problem.why).splitlines()
    if problem.legal:
        legal = " or ".join(_short(value, LONGEST_LEGAL) for value in problem.legal)
        lines += _wrap("", f"legal: {legal}").splitlines()
    lines += [
        paint(line, "dim", colour) for line in _wrap("", f"{problem.id}: {problem.evidence}").splitlines()
    ]
    return lines


def _wrap(head: str, text: str) -> str:
    pad = " " * INDENT
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=head.ljust(INDENT),
        subsequent_indent=pad,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _short(value: object, longest: int = 60) -> str:
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _grouped(problems: tuple[Problem, ...]) -> list[tuple[Problem, list[str]]]:
    """Equal problems of several experiments once; refusals first."""
    found: dict[str, tuple[Problem, list[str]]] = {}
    for problem in problems:
        same = repr(replace(problem, experiment=""))
        found.setdefault(same, (problem, []))[1].append(problem.experiment)
    return sorted(found.values(), key=lambda item: item[0].level != "refuse")


def _skipped(report: Report) -> list[tuple[str, str, int]]:
    by_reason: dict[str, tuple[list[str], int]] = {}
    for item in report.skipped:
        names, _ = by_reason.setdefault(item.why, ([], len(item.checks)))
        names.append(item.experiment)
    return [(why, ", ".join(names), count) for why, (names, count) in by_reason.items()]
