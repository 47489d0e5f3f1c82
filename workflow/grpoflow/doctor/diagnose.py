"""From files to a diagnosis."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import judge, numbers
from .findings import KINDS, Diagnosis, Finding
from .order import BEGINNING, Sighting, first
from .patterns import patterns
from .scan import scan
from .sources import UNREADABLE, Source, discover
from .split import step_split
from .tracebacks import split

WAITS = (1, 2)
SILENT = 3
UNKNOWN = ("exception", "interrupted", "exception-waiting")
ARGS_BYTES = 8 << 20


def diagnose(paths: Iterable[Path]) -> Diagnosis:
    """Read logs, metrics, arguments and package lists below `paths` and say what went wrong first.

    How lines without a time are ordered, and which of several causes is the first, is stated in `order`.

    Raises:
        FileNotFoundError: one or more of the paths do not exist; names all of them.
    """
    sources, notes, unread = discover(paths)
    of_kind = {
        kind: [source for source in sources if source.kind == kind]
        for kind in ("log", "completions", "metrics", "args", "packages", "profile")
    }
    logs = [scan(source, index) for index, source in enumerate([*of_kind["log"], *of_kind["completions"]])]
    for log in logs:
        if log.broken:
            unread.append(f"{log.source.path}: read up to byte {log.size} only: {log.broken}")
    sightings = [sighting for log in logs for sighting in log.sightings]
    findings: list[Finding] = []
    trainings = []
    for source in of_kind["metrics"]:
        args = _args_of(source.path, of_kind["args"])
        try:
            training = numbers.read(source.path, int(args.get("save_steps") or 0))
        except UNREADABLE as error:
            unread.append(f"{source.path}: {error}")
            continue
        trainings.append(training)
        if not training.records:
            continue
        phases = step_split(training, [s.path for s in of_kind["profile"]], logs, args)
        findings += judge.slow_training(training, args, phases)
        changed = source.path.stat().st_mtime
        sightings += [
            Sighting(finding, SILENT, (len(logs) + len(trainings), 0), BEGINNING, changed, changed)
            for finding in judge.silent_failures(training, args)
        ]
        notes += [
            note for note in (judge.normal_loss(training), phases and f"{source.path}: {phases}") if note
        ]
    # not log by log: a small program of a run on CPUs does not say so in its own log
    cpu_only = any(log.cpu_only for log in logs) and not any(training.gpu for training in trainings)
    tuned, tuning_notes = judge.tuning(logs)
    findings += [*tuned, *judge.packages(source.path for source in of_kind["packages"])]
    judged = any(log.size for log in logs) or any(training.records for training in trainings)
    if not judged:
        empty = [log.source.path for log in logs if not log.broken] + [known.path for known in trainings]
        unread += [f"{path}: empty" for path in empty]
    diagnosis = _ordered(_merged(sightings, cpu_only), findings, [*notes, *tuning_notes])
    return replace(diagnosis, unread=tuple(unread), judged=judged or bool(diagnosis.findings))


def first_cause(paths: Iterable[Path]) -> Finding | None:
    """The first cause in the logs below those of `paths` that exist; None if there is none.

    For a message about a failed stage: a missing path is no error here.
    """
    return diagnose([path for path in paths if path.exists()]).first_cause


def _args_of(metrics: Path, args: Sequence[Source]) -> Mapping[str, Any]:
    """The args.json beside a logging.jsonl; {} if there is none or it is no JSON object."""
    for source in args:
        if (
            source.path.parent.resolve() == metrics.parent.resolve()
            and source.path.stat().st_size < ARGS_BYTES
        ):
            try:
                value = json.loads(source.path.read_text(encoding="utf-8", errors="replace"))
            except ValueError:
                return {}
            return value if isinstance(value, dict) else {}
    return {}


def _merged(sightings: Sequence[Sighting], cpu_only: bool) -> list[Sighting]:
    """One sighting per finding over all files, ranks and roles: the earliest, with the sum of the counts."""
    gpu_only = {pattern.id for pattern in patterns() if pattern.gpu_only}
    merged: dict[tuple[str, str, str], Sighting] = {}
    for sighting in sorted(sightings, key=lambda sighting: sighting.key):
        finding = sighting.finding
        if cpu_only and finding.id in gpu_only:
            continue
        key = (finding.id, finding.kind, split(finding.text).body if finding.id in UNKNOWN else "")
        if key in merged:
            known = merged[key]
            known.finding = replace(known.finding, count=known.finding.count + finding.count)
        else:
            merged[key] = sighting
    return list(merged.values())


def _ordered(sightings: Sequence[Sighting], findings: Sequence[Finding], notes: Sequence[str]) -> Diagnosis:
    cause = first(sighting for sighting in sightings if sighting.finding.kind == "cause")
    others = list(findings)
    for sighting in sorted(sightings, key=lambda sighting: sighting.key):
        finding = sighting.finding
        if finding.kind == "cause" and sighting.level in WAITS:
            finding = replace(finding, kind="consequence")  # it waited for what the first cause ended
        if sighting is not cause:
            others.append(finding)
    others.sort(key=lambda finding: KINDS.index(finding.kind))
    if cause is None:
        return Diagnosis(None, tuple(others), tuple(notes))
    return Diagnosis(cause.finding, (cause.finding, *others), tuple(notes))
