"""Which files of a run the doctor reads, and what each of them is."""

from __future__ import annotations

import errno
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BufferedReader
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
# What reading a file may raise: the last two say that a .gz file is cut or damaged.
UNREADABLE = (OSError, EOFError, zlib.error)
GZIP = b"\x1f\x8b"
OTHER_PACKERS = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


@dataclass(frozen=True)
class Source:
    """One file: its kind, and the role that wrote it ("" if its name does not tell)."""

    path: Path
    kind: FileKind
    role: str


def opened(path: Path) -> BufferedReader | gzip.GzipFile:
    """Open a file for reading; of a .gz file, whatever its name, what is in it."""
    with path.open("rb") as content:
        packed = content.read(len(GZIP)) == GZIP
    return gzip.GzipFile(path) if packed else path.open("rb")


def discover(paths: Iterable[Path]) -> tuple[list[Source], list[str], list[str]]:
    """List the files to read below `paths`, notes about what was left out, and what cannot be read.

    A path to a file is read whatever its name. In a directory the names decide; checkpoints are left out, and
    of attempt-1, attempt-2, ... only the newest is read: an older attempt ended before this one began.

    Raises:
        FileNotFoundError: one or more paths do not exist; names all of them.
    """
    roots = list(paths)
    if missing := [str(path) for path in roots if not os.path.lexists(path) or _dangles(path)]:
        raise FileNotFoundError(f"no such file or directory: {', '.join(missing)}")
    sources: dict[Path, Source] = {}
    notes: list[str] = []
    unread: list[str] = []
    for root in roots:
        named = not root.is_dir()
        for path in [root] if named else _walk(root, notes, unread):
            kind = _kind(path.name.removesuffix(".gz")) or ("log" if named else None)
            if kind is None:
                continue
            if why := _why_not(path):
                unread.append(f"{path}: {why}")
                continue
            base = root.parent if named else root
            sources.setdefault(path.resolve(), Source(path, kind, _role(path.relative_to(base))))
    return list(sources.values()), notes, unread


def _dangles(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


def _why_not(path: Path) -> str:
    """Why a file cannot be read, without waiting for the other end of a pipe; "" if it can."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "no regular file"
        with path.open("rb") as content:
            head = content.read(8)
    except OSError as error:
        return error.strerror or str(error)
    packer = next((name for magic, name in OTHER_PACKERS.items() if head.startswith(magic)), "")
    return f"packed by {packer}: unpack it first" if packer else ""


def _walk(root: Path, notes: list[str], unread: list[str]) -> Iterable[Path]:
    def refused(error: OSError) -> None:
        unread.append(f"{error.filename}: {error.strerror}")

    for directory, names, files in os.walk(root, onerror=refused):
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
