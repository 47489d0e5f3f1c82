"""Which files of a run the doctor reads, and what each of them is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FileKind = Literal["log", "metrics", "args", "packages", "completions", "profile"]

LOG_NAME = re.compile(r"(?:\.(?:log|out|err)(?:\.\d+)?|\.[oe]\d+(?:\.\d+)?)$|^(?:stdout|stderr|nohup\.out)$")
PACKAGES_NAME = re.compile(r"^(?:pip[-_]?)?(?:freeze|requirements)[\w.-]*\.txt$|^[\w.-]*freeze\.txt$")
NAMES: dict[str, FileKind] = {
    "logging.jsonl": "metrics",
    "completions.jsonl": "completions",
    "args.json": "args",
    "wandb-summary.json": "profile",
    "profiling.jsonl": "profile",
}
# Their logs, if there are any, belong to another run or are no text.
SKIPPED = re.compile(r"^(?:checkpoint-\d+|iter_\d+|images|\.git|\.envs|__pycache__|site-packages)$")
ATTEMPT = re.compile(r"^attempt-(\d+)$")
ROLES = (
    ("snakemake", re.compile(r"snakemake")),
    ("slurm", re.compile(r"slurm|sbatch|submitit")),
    ("rollout", re.compile(r"rollout|vllm")),
)


@dataclass(frozen=True)
class Source:
    """One file: its kind, and the role that wrote it ("" if its name does not tell)."""

    path: Path
    kind: FileKind
    role: str


def discover(paths: Iterable[Path]) -> tuple[list[Source], list[str]]:
    """List the files to read below `paths`, and notes about what was left out.

    A path to a file is read whatever its name. In a directory the names decide; checkpoints are left out, and
    of attempt-1, attempt-2, ... only the newest is read: an older attempt ended before this one began.

    Raises:
        FileNotFoundError: one or more paths do not exist; names all of them.
    """
    roots = list(paths)
    if missing := [str(path) for path in roots if not path.exists()]:
        raise FileNotFoundError(f"no such file or directory: {', '.join(missing)}")
    sources: dict[Path, Source] = {}
    notes: list[str] = []
    for root in roots:
        for path in [root] if root.is_file() else _walk(root, notes):
            kind = _kind(path.name) or ("log" if path == root else None)
            if kind is not None:
                base = root.parent if root.is_file() else root
                sources.setdefault(path.resolve(), Source(path, kind, _role(path.relative_to(base))))
    return list(sources.values()), notes


def _walk(root: Path, notes: list[str]) -> Iterable[Path]:
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not SKIPPED.match(name))
        if old := _older_attempts(names):
            notes.append(f"not read: {', '.join(old)} in {directory} (older attempts)")
            names[:] = [name for name in names if name not in old]
        yield from (Path(directory, name) for name in sorted(files))


def _older_attempts(names: Sequence[str]) -> list[str]:
    numbers = {name: int(match[1]) for name in names if (match := ATTEMPT.match(name))}
    return [name for name in numbers if numbers[name] < max(numbers.values())]


def _kind(name: str) -> FileKind | None:
    if name in NAMES:
        return NAMES[name]
    if PACKAGES_NAME.match(name):
        return "packages"
    return "log" if LOG_NAME.search(name) else None


def _role(path: Path) -> str:
    """Tell the role from the file name, else from the nearest directory that tells."""
    for part in reversed(path.parts):
        for role, name in ROLES:
            if name.search(part.lower()):
                return role
    return "trainer" if re.search(r"train|rlhf|grpo|sft", path.name.lower()) else ""
