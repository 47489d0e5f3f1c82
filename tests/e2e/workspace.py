"""A working directory of the workflow, and what tests do in it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".envs/orchestrator/bin"
SECONDS = 1800
PARTS = ("Snakefile", "workflow", "config", "profiles", "slurm", "envs", "scripts", ".envs")


@dataclass(frozen=True)
class Workspace:
    """A working directory with the workflow in it and results of its own."""

    path: Path

    def snakemake(
        self, *arguments: str | Path, profile: str = "profiles/local", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return self.run(BIN / "snakemake", "--profile", profile, *arguments, check=check)

    def run(self, *argv: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(
                [os.fspath(part) for part in argv],
                cwd=self.path,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,  # the main job takes 500 s; one that hangs must say where
            )
        except subprocess.TimeoutExpired as error:
            printed = (
                (text or b"")[-6000:].decode("utf-8", "replace") for text in (error.stdout, error.stderr)
            )
            pytest.fail("\n".join((f"{argv} did not end in {SECONDS} s", *printed)))
        if check and done.returncode != 0:
            pytest.fail(f"{argv} ended with {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
        return done

    def json(self, path: str) -> Any:
        return json.loads((self.path / path).read_text())

    def write(self, name: str, text: str) -> str:
        (self.path / name).write_text(text)
        return name

    def planned(self, *arguments: str) -> set[str]:
        """Names of the rules that a dry run would execute."""
        shown = self.snakemake("--dry-run", *arguments).stdout
        table = shown.partition("Job stats:")[2].partition("\ntotal")[0]
        return {line.split()[0] for line in table.splitlines()[3:] if line.strip()}


def make_workspace(path: Path) -> Workspace:
    path.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if not (path / part).exists():
            (path / part).symlink_to(ROOT / part)
    return Workspace(path)


def processes_of(path: Path) -> dict[int, str]:
    """Command lines, by process id, of all processes that work in a directory or name it."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            directory = (process / "cwd").readlink()
        except OSError:
            continue
        if str(path) in command or directory.is_relative_to(path):
            found[int(process.name)] = command
    return found


def left_processes(path: Path) -> dict[int, str]:
    """As `processes_of`, once the guards, which end what a killed parent left, have had their seconds."""
    deadline = time.monotonic() + 15
    while (found := processes_of(path)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found
