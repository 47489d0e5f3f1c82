"""A GRPO run on disk, as driver and job both see it.

results/EXPERIMENT/runs/RUN/
    run.json          identity: convergence keys and the fingerprints of what it starts from
    launch.json       how the next job is to be started (configuration, placement, paths)
    job.json          the jobs of the run: the live or last one, and those that it continues
    allocation.json   what the job is doing: attempt, servers, state (written by its first node)
    driver.lock       which driver may submit and cancel
    leader            the Snakemake whose driver had the lock last
    reserve           disk space for the last words of an attempt
    first_rollout.json  which attempt's first rollout was found to be sound; checkpoints count from then on
    refused.json      after which step the checkpoints are not to be used, until they are moved aside
    alarms.json       what was odd in what the training produced, and for how long
    output/           output_dir of ms-swift: checkpoints, logging.jsonl, completions.jsonl
    attempts/KEY/     rendezvous of the nodes of one attempt (KEY: job id, restart of the job, try in it)
    submitit/         scripts, pickles and outputs of submitit
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from grpoflow.config import Config
from grpoflow.files import create_once, read_json, write_json
from grpoflow.plan.placement import Placement

Status = Literal["complete", "stopped", "failed", "preempted", "cancelled"]
RESULTS = Path("results")
KEY = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True)
class RunDirectory:
    """Paths of a run."""

    path: Path

    @property
    def identity(self) -> Path:
        return self.path / "run.json"

    @property
    def launch(self) -> Path:
        return self.path / "launch.json"

    @property
    def job(self) -> Path:
        return self.path / "job.json"

    @property
    def allocation(self) -> Path:
        return self.path / "allocation.json"

    @property
    def output(self) -> Path:
        return self.path / "output"

    @property
    def log(self) -> Path:
        return self.output / "logging.jsonl"

    @property
    def completions(self) -> Path:
        return self.output / "completions.jsonl"

    @property
    def first_rollout(self) -> Path:
        return self.path / "first_rollout.json"

    @property
    def refused(self) -> Path:
        return self.path / "refused.json"

    @property
    def alarms(self) -> Path:
        return self.path / "alarms.json"

    @property
    def lock(self) -> Path:
        return self.path / "driver.lock"

    @property
    def leader(self) -> Path:
        return self.path / "leader"

    @property
    def reserve(self) -> Path:
        """Bytes to give up when the disk is full, so that the end of the attempt can be written."""
        return self.path / "reserve"

    @property
    def submitit(self) -> Path:
        return self.path / "submitit"

    def attempt(self, key: AttemptKey) -> Attempt:
        return Attempt(self.path / "attempts" / str(key))

    def attempts(self, jobs: Sequence[str]) -> list[Attempt]:
        """The attempts of these jobs that were opened, oldest first."""
        names = (path.name for path in (self.path / "attempts").glob("*"))
        keys = [AttemptKey.parse(name) for name in names if KEY.fullmatch(name)]
        found = sorted((jobs.index(key.job), key.restart, key.again) for key in keys if key.job in jobs)
        attempts = [self.attempt(AttemptKey(jobs[job], restart, again)) for job, restart, again in found]
        return [attempt for attempt in attempts if attempt.facts.is_file()]

    def log_directories(self) -> list[str]:
        """The log directories of all attempts of the run."""
        found = (self.path / "attempts").glob("*/attempt.json")
        return [read_json(path)["logs"] for path in found]

    def jobs(self) -> list[str]:
        """The ids of the recorded job and of those that it continues, oldest first."""
        facts = read_json(self.job) if self.job.is_file() else {}
        return [*facts.get("continues", []), *([facts["id"]] if "id" in facts else [])]


def driven_by(leader: str) -> list[RunDirectory]:
    """The runs of this working directory whose driver was last a stage of this Snakemake."""
    found = [path for path in RESULTS.glob("*/runs/*/leader") if path.read_text(encoding="utf-8") == leader]
    return [RunDirectory(path.parent.absolute()) for path in sorted(found)]


@dataclass(frozen=True)
class AttemptKey:
    """Which attempt: of which job, after how many requeues of Slurm's, after how many tries of ours."""

    job: str
    restart: int = 0
    again: int = 0

    def __str__(self) -> str:
        return f"{self.job}.{self.restart}.{self.again}"

    @classmethod
    def parse(cls, text: str) -> AttemptKey:
        job, restart, again = text.split(".")
        return cls(job, int(restart), int(again))


@dataclass(frozen=True)
class Attempt:
    """The files by which the nodes of one attempt agree. Every file is written by rename or link."""

    path: Path

    @property
    def facts(self) -> Path:
        return self.path / "attempt.json"

    def node(self, index: int) -> Path:
        """Address of a node; its time of modification is the heartbeat of the node's supervisor."""
        return self.path / "nodes" / f"{index}.json"

    def linked(self, index: int) -> Path:
        """Written when a node has reached all other nodes that it must reach."""
        return self.path / "linked" / f"{index}.json"

    def cleared(self, index: int) -> Path:
        """Written when a node listens no more on the ports of its programs."""
        return self.path / "cleared" / f"{index}.json"

    def ready(self, role: str) -> Path:
        return self.path / "ready" / f"{role}.json"

    @property
    def serving(self) -> Path:
        """Written when all rollout servers are ready and were tried from the trainer's node."""
        return self.path / "serving.json"

    def done(self, role: str) -> Path:
        return self.path / "done" / f"{role}.json"

    @property
    def deadline(self) -> Path:
        """When the job ends, for the training callback (grpoflow.training_env.walltime)."""
        return self.path / "deadline.json"

    @property
    def stopped(self) -> Path:
        """Written by the training callback: training stopped by itself, with a complete checkpoint."""
        return self.path / "stopped.json"

    @property
    def end(self) -> Path:
        return self.path / "end.json"

    def left(self, index: int) -> Path:
        """Written when all programs of a node have ended."""
        return self.path / "left" / f"{index}.json"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    def finish(self, status: Status, cause: str, *, lasting: bool = False, accident: bool = False) -> None:
        """End the attempt on all nodes. The first cause stays; what follows from it is not written.

        lasting: another attempt would meet the same cause. accident: it would not.
        """
        facts = {"status": status, "cause": cause, "lasting": lasting, "accident": accident}
        create_once(self.end, {**facts, "time": time.time()})


@dataclass(frozen=True)
class Launch:
    """Everything that the job needs to know, resolved by the driver before it is submitted."""

    experiment: str
    config: Config
    placement: Placement
    start: Path
    mcore: Path | None
    dataset: Path
    logs: Path
    response_prefix: str = ""
    """What the trainer's template puts before each completion."""

    def write(self, path: Path) -> None:
        value: dict[str, Any] = {
            "experiment": self.experiment,
            "config": self.config.model_dump(mode="json"),
            "placement": asdict(self.placement),
            "start": str(self.start),
            "mcore": self.mcore and str(self.mcore),
            "dataset": str(self.dataset),
            "logs": str(self.logs),
            "response_prefix": self.response_prefix,
        }
        write_json(path, value)

    @classmethod
    def read(cls, path: Path) -> Launch:
        value = read_json(path)
        return cls(
            experiment=value["experiment"],
            config=Config.model_validate(value["config"]),
            placement=Placement.from_json(json.dumps(value["placement"])),
            start=Path(value["start"]),
            mcore=Path(value["mcore"]) if value["mcore"] else None,
            dataset=Path(value["dataset"]),
            logs=Path(value["logs"]),
            response_prefix=value.get("response_prefix", ""),
        )
