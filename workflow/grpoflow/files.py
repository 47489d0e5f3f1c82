"""Files that are complete or absent: written to a temporary name, flushed, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EDGE = 1 << 20


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` and rename it over `path` when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Bring a file to the disk before its name is: a power cut would leave the name with nothing in it."""
    with path.open("rb") as written:
        os.fsync(written.fileno())


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def create_once(path: Path, value: Any) -> bool:
    """Write JSON unless the file is there already; return whether this call wrote it.

    The first of several writers wins, on every node: the hard link is atomic on shared filesystems too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        _flush(temporary)
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def point(link: Path, target: Path) -> None:
    """Make `link` a relative symbolic link to `target`, atomically."""
    temporary = link.with_name(f".{link.name}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.symlink_to(os.path.relpath(target, link.parent))
    temporary.replace(link)


def sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def fingerprint(directory: Path) -> str:
    """Identify the content of a checkpoint directory without reading hundreds of gigabytes.

    Hashes the name, the size and the first and last MiB of every file: a safetensors header (first bytes)
    names all tensors, and weights of another training step differ in the edges of at least one shard.
    """
    total = hashlib.sha256()
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        size = path.stat().st_size
        total.update(f"{path.relative_to(directory)}\0{size}\0".encode())
        with path.open("rb") as content:
            total.update(content.read(EDGE))
            if size > EDGE:
                content.seek(max(EDGE, size - EDGE))
                total.update(content.read(EDGE))
    return total.hexdigest()


class Follower:
    """Reads what is appended to a file, each line once. What follows the last line break is being written."""

    def __init__(self, path: Path, *, from_start: bool = False):
        self._path = path
        self._offset = 0 if from_start or not path.is_file() else path.stat().st_size

    def read(self) -> list[bytes]:
        """The lines that were completed since the last call; none while there is no file."""
        try:
            with self._path.open("rb") as content:
                content.seek(self._offset)
                lines = content.read().split(b"\n")[:-1]
        except OSError:
            return []
        self._offset += sum(len(line) + 1 for line in lines)
        return lines


def new_log_directory(parent: Path) -> Path:
    """Claim `parent`/attempt-N for the next N, and point `parent`/latest to it. Nothing is overwritten."""
    parent.mkdir(parents=True, exist_ok=True)
    names = (re.fullmatch(r"attempt-(\d+)", path.name) for path in parent.iterdir())
    number = 1 + max((int(match[1]) for match in names if match), default=0)  # attempt-1.tar.gz is a person's
    while True:
        directory = parent / f"attempt-{number}"
        try:
            directory.mkdir()
        except FileExistsError:
            number += 1
            continue
        point(parent / "latest", directory)
        return directory
