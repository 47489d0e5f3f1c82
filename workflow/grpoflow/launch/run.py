"""A GRPO run on disk, as driver and job both see it.

results/EXPERIMENT/runs/RUN/
    run.json          identity: convergence keys and the fingerprints of what it starts from
    launch.json       how the next job is to be started (configuration, placement, paths)
    job.json          the job that was submitted last (written by drivers)
        allocation.json   what that job is doing: attempt, servers, state (written by its first node)
    output/           output_dir of ms-swift: checkpoints, logging.jsonl, completions.jsonl
    attempts/KEY/     rendezvous of the nodes of one attempt (KEY: job id and restart count)
    submitit/         scripts, pickles and outputs of submitit
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpoflow.config import Config
from grpoflow.files import create_once, read_json, write_json
from grpoflow.plan.placement import Placement


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
    def submitit(self) -> Path:
        return self.path / "submitit"

    def attempt(self, key: str) -> Attempt:
        return Attempt(self.path / "attempts" / key)


@dataclass(frozen=True)
class Attempt:
    """The files by which the nodes of one attempt agree. Every file is written once, by rename or link."""

    path: Path

    @property
    def facts(self) -> Path:
        return self.path / "attempt.json"

    def node(self, index: int) -> Path:
        return self.path / "nodes" / f"{index}.json"

    def ready(self, role: str) -> Path:
        return self.path / "ready" / f"{role}.json"

    def done(self, role: str) -> Path:
        return self.path / "done" / f"{role}.json"

    @property
    def end(self) -> Path:
        return self.path / "end.json"

    def finish(self, status: str, cause: str) -> None:
        """End the attempt on all nodes. The first cause stays; what follows from it is not written."""
        create_once(self.end, {"status": status, "cause": cause})


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

    def write(self, path: Path) -> None:
        value: dict[str, Any] = {
            "experiment": self.experiment,
            "config": self.config.model_dump(mode="json"),
            "placement": asdict(self.placement),
            "start": str(self.start),
            "mcore": self.mcore and str(self.mcore),
            "dataset": str(self.dataset),
            "logs": str(self.logs),
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
        )
