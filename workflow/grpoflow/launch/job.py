"""One job that holds a whole GRPO run: submitting it, finding it again, asking about it, cancelling it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import submitit

from grpoflow.files import read_json

from .node import run_node
from .run import Launch, RunDirectory

State = Literal["pending", "running", "gone"]
SQUEUE_PENDING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "SUSPENDED",
}


class SubmissionFailed(Exception):
    """The job could not be submitted. The message holds what sbatch said."""


class Job(ABC):
    """A submitted job."""

    id: str
    kind: str

    @abstractmethod
    def state(self) -> State:
        """Ask where the job is now."""

    @abstractmethod
    def cancel(self) -> None:
        """End the job. Nothing happens when it has ended."""

    def facts(self) -> dict[str, Any]:
        return {"launcher": self.kind, "id": self.id}


@dataclass(frozen=True)
class SlurmJob(Job):
    """A job in Slurm. Its state is asked from squeue: sacct is not available on every cluster, and a job that
    Slurm requeues stays in the queue under the same id."""

    id: str
    kind: str = "slurm"

    def state(self) -> State:
        asked = subprocess.run(
            ["squeue", "--noheader", "--jobs", self.id, "--format", "%T"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode != 0 and "Invalid job id" not in asked.stderr:
            return "pending"  # slurmctld did not answer: no answer is not an end
        found = asked.stdout.strip()
        if found in SQUEUE_PENDING:
            return "pending"
        return "running" if found in {"RUNNING", "COMPLETING", "STOPPED", "RESIZING", "SIGNALING"} else "gone"

    def cancel(self) -> None:
        subprocess.run(["scancel", self.id], check=False)


@dataclass(frozen=True)
class LocalJob(Job):
    """A job on this machine: submitit's controller process, told from later ones by its start time."""

    id: str
    started: str
    kind: str = "local"

    def state(self) -> State:
        return "running" if process_start(int(self.id)) == self.started else "gone"

    def cancel(self) -> None:
        if self.state() == "running":
            os.kill(int(self.id), signal.SIGTERM)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "started": self.started}


def process_start(pid: int) -> str:
    """Start time of a process in clock ticks after boot, or an empty text when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def job_of(facts: Mapping[str, Any]) -> Job:
    """Find a job again from what `Job.facts` wrote."""
    if facts["launcher"] == "slurm":
        return SlurmJob(facts["id"])
    return LocalJob(facts["id"], facts["started"])


def submit(run: RunDirectory, launcher: str, resources: Mapping[str, Any]) -> Job:
    """Submit the job of a run.

    Raises:
        SubmissionFailed: Slurm refused it, or a multi-node placement was asked from this machine.
    """
    launch = Launch.read(run.launch)
    if launcher == "local":
        return _submit_local(run, launch)
    try:
        executor = submitit.SlurmExecutor(run.submitit)
        executor.update_parameters(**slurm_parameters(launch, run, resources))
        # a submission from inside another job would inherit its SLURM_* and SBATCH_* options
        with submitit.helpers.clean_env():
            job = executor.submit(run_node, str(run.path))
    except submitit.core.utils.FailedJobError as error:
        raise SubmissionFailed(f"sbatch refused the job: {error}") from error
    return SlurmJob(job.job_id)


def slurm_parameters(launch: Launch, run: RunDirectory, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the resources of the Snakemake rule and profile into those of submitit.

    The number of nodes comes from the placement; everything else from the rule, the profile or
    `--set-resources`, so that one way of asking works for every stage.
    """
    parameters: dict[str, Any] = {
        "job_name": f"grpoflow-{launch.experiment}",
        "comment": f"train_grpo {launch.experiment} {run.path.name}",
        "nodes": len(launch.placement.nodes),
        "ntasks_per_node": 1,
        "stderr_to_stdout": True,
        # a preempted job, or one whose node failed, comes back under its id and resumes
        "additional_parameters": {"requeue": True},
    }
    names = {
        "slurm_partition": "partition",
        "slurm_account": "account",
        "qos": "qos",
        "constraint": "constraint",
        "runtime": "time",
        "cpus_per_task": "cpus_per_task",
        "gres": "gres",
    }
    parameters |= {ours: resources[name] for name, ours in names.items() if resources.get(name)}
    if resources.get("mem_mb"):
        parameters["mem"] = f"{resources['mem_mb']}M"
    if extra := resources.get("slurm_extra"):
        parameters["additional_parameters"] |= extra_options(str(extra))
    return parameters


def extra_options(text: str) -> dict[str, Any]:
    """Read `slurm_extra` ("--exclusive --nice=10") as options of sbatch.

    Raises:
        SubmissionFailed: a part is not of the form --name or --name=value.
    """
    options: dict[str, Any] = {}
    for part in text.split():
        if not part.startswith("--"):
            raise SubmissionFailed(f"slurm_extra: {part!r} is not of the form --name or --name=value")
        name, separator, value = part[2:].partition("=")
        options[name] = value if separator else True
    return options


def _submit_local(run: RunDirectory, launch: Launch) -> Job:
    if len(launch.placement.nodes) > 1:
        raise SubmissionFailed(
            f"this placement needs {len(launch.placement.nodes)} nodes, the local launcher has one machine; "
            "use --profile slurm, or share the node with rollout.nodes: 0 and rollout.gpus"
        )
    # in a session of its own: closing the terminal ends the driver, not the job
    argv = [sys.executable, "-m", "grpoflow.launch.local", str(run.path)]
    answered = subprocess.run(argv, capture_output=True, text=True, check=False, start_new_session=True)
    if answered.returncode != 0:
        raise SubmissionFailed(f"the local job could not be started:\n{answered.stderr}")
    pid = answered.stdout.strip()
    return LocalJob(pid, process_start(int(pid)))


def recorded_job(run: RunDirectory) -> Job | None:
    """The job that was last submitted for a run, alive or not."""
    return job_of(read_json(run.job)) if run.job.is_file() else None
