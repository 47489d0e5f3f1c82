"""One job that holds a whole GRPO run: submitting it, finding it again, asking about it, cancelling it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import submitit
from submitit.slurm.slurm import _make_sbatch_string

from grpoflow.config.identity import digest
from grpoflow.files import read_json, write_json

from . import slurm
from .node import run_node
from .processes import process_start
from .run import Launch, RunDirectory

State = Literal["pending", "running", "gone", "unknown"]
CANCEL_SECONDS = 180.0
POLL_SECONDS = 1.0


class SubmissionFailed(Exception):
    """The job could not be submitted. The message holds what sbatch said."""


class Job(ABC):
    """A submitted job."""

    id: str
    kind: str

    @abstractmethod
    def state(self) -> State:
        """Ask where the job is now; `unknown` when nobody answers, which is never an end."""

    @abstractmethod
    def cancel(self) -> None:
        """End the job. Nothing happens when it has ended, or when nobody can be told."""

    def facts(self) -> dict[str, Any]:
        return {"launcher": self.kind, "id": self.id}

    def restarts(self) -> int:
        """How often Slurm has put the job back into the queue. Raises: NoAnswer."""
        return 0

    def reason(self) -> str:
        """Why the job waits, or how it ended; empty where nothing is known."""
        return ""


@dataclass(frozen=True)
class SlurmJob(Job):
    """A job in Slurm. A job that Slurm requeues stays in the queue under the same id."""

    id: str
    kind: str = "slurm"

    def state(self) -> State:
        try:
            facts = slurm.job_facts(self.id)
        except slurm.NoAnswer:
            return "unknown"
        if facts is None:
            return "gone"
        return "pending" if facts.is_pending else "running" if facts.is_running else "gone"

    def cancel(self) -> None:
        try:
            slurm.cancel(self.id)
        except slurm.NoAnswer as error:
            print(f"scancel {self.id}: {error}", file=sys.stderr, flush=True)

    def reason(self) -> str:
        try:
            facts = slurm.job_facts(self.id)
        except slurm.NoAnswer:
            return ""
        if facts is None:
            return ""
        return facts.reason.replace("None", "") if facts.is_pending else facts.state

    def restarts(self) -> int:
        facts = slurm.job_facts(self.id)
        return facts.restarts if facts is not None else 0


@dataclass(frozen=True)
class LocalJob(Job):
    """A job on this machine: submitit's controller process, told from later ones by its start time."""

    id: str
    started: str
    kind: str = "local"

    def state(self) -> State:
        return "running" if self.started and process_start(int(self.id)) == self.started else "gone"

    def cancel(self) -> None:
        if self.state() == "running":
            with contextlib.suppress(ProcessLookupError):  # it ended in between
                os.kill(int(self.id), signal.SIGTERM)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "started": self.started}


def job_of(facts: Mapping[str, Any]) -> Job:
    """Find a job again from what `Job.facts` wrote."""
    if facts["launcher"] == "slurm":
        return SlurmJob(facts["id"])
    return LocalJob(facts["id"], facts["started"])


def recorded_job(run: RunDirectory) -> Job | None:
    """The job that was last submitted for a run, alive or not."""
    return job_of(read_json(run.job)) if run.job.is_file() else None


def live_slurm_job(run: RunDirectory) -> Job | None:
    """The job of this run that is in the queue, recorded or not: a driver may have died between submitting
    and recording it.

    Raises:
        NoAnswer: Slurm cannot be asked now.
    """
    found = slurm.jobs_with_comment(comment(run))
    return SlurmJob(found[-1]) if found else None


def has_ended(run: RunDirectory, job: Job) -> bool:
    """Whether a recorded job is over; also when its id meanwhile belongs to another job.

    Raises:
        NoAnswer: Slurm cannot be asked now.
    """
    state = job.state()
    if state == "unknown":
        raise slurm.NoAnswer(f"state of job {job.id}")
    return state == "gone" or not _is_ours(run, job)


def _is_ours(run: RunDirectory, job: Job) -> bool:
    """A site may write comments of its own: then the job is known by its name."""
    if job.kind == "local" or job.id in slurm.jobs_with_comment(comment(run)):
        return True
    facts = slurm.job_facts(job.id)
    return facts is not None and facts.name == job_name(run.path.parents[1].name)


def end_job(run: RunDirectory, job: Job, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Cancel a recorded job until it has ended; return whether it did in CANCEL_SECONDS. A controller that
    restarts hears nothing at first."""
    deadline = time.monotonic() + CANCEL_SECONDS
    while True:
        try:
            if has_ended(run, job):
                return True
            job.cancel()
        except slurm.NoAnswer as error:
            print(f"job {job.id}: {error}", file=sys.stderr, flush=True)
        if time.monotonic() > deadline:
            return False
        meanwhile()
        time.sleep(POLL_SECONDS)


def record(run: RunDirectory, job: Job, continues: Sequence[str]) -> None:
    """Write down which job is the run's, and which ones it continues."""
    write_json(run.job, {**job.facts(), "continues": list(continues)})


def job_name(name: str) -> str:
    """Name of a job in Slurm's queue: of an experiment, or of a program of a stage."""
    return f"grpoflow-{name}"


def comment(run: RunDirectory) -> str:
    """By which a job in Slurm's queue is recognised: experiment, run and where the run lies."""
    return f"train_grpo {run.path.parents[1].name} {run.path.name}-{digest(str(run.path))}"


def submit(
    run: RunDirectory, launcher: str, resources: Mapping[str, Any], continues: Sequence[str] = ()
) -> Job:
    """Submit the job of a run and record it. `continues`: jobs whose attempts count with those of this one.

    Raises:
        SubmissionFailed: Slurm refused it, or a multi-node placement was asked from this machine.
    """
    launch = Launch.read(run.launch)
    if launcher == "local":
        return _submit_local(run, launch, continues)
    executor = submitit.SlurmExecutor(run.submitit)
    try:
        executor.update_parameters(
            **slurm_parameters(launch.experiment, len(launch.placement.nodes), comment(run), resources)
        )
        # a submission from inside another job would inherit its SLURM_* and SBATCH_* options
        with submitit.helpers.clean_env():
            job = executor.submit(run_node, str(run.path))
    except submitit.core.utils.FailedJobError as error:
        raise SubmissionFailed(f"sbatch refused the job: {error}") from error
    record(run, SlurmJob(job.job_id), continues)
    return SlurmJob(job.job_id)


def sbatch_script(experiment: str, nodes: int, run: RunDirectory, resources: Mapping[str, Any]) -> str:
    """The script that `submit` hands to sbatch.

    Raises:
        SubmissionFailed: `slurm_extra` cannot be read.
    """
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(run.submitit))}"
    parameters = slurm_parameters(experiment, nodes, comment(run), resources)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(_make_sbatch_string(command, run.submitit, **parameters))


def rehearse(script: str) -> str:
    """Ask Slurm whether and when it would run a script (`sbatch --test-only`), and return what it says.

    Raises:
        SubmissionFailed: it would refuse the job.
        NoAnswer: there is no Slurm here, or it does not answer.
    """
    try:
        with submitit.helpers.clean_env():
            return slurm.rehearse(script)
    except slurm.Refused as error:
        raise SubmissionFailed(f"sbatch would refuse the job: {error}") from error


INSTEAD = {
    "gpu": "give gres=gpu:N, which is of each node",
    "gpu_model": "give gres=gpu:MODEL:N",
    "gpus": "give gres=gpu:N, which is of each node",
    "nodes": "trainer.nodes and rollout.nodes of the configuration say how many there are",
    "tasks": "there is one on each node",
    "tasks_per_gpu": "there is one on each node",
    "cpus_per_gpu": "give cpus_per_task, which is of each node",
    "mpi": "the programs start their own ranks",
}
"""Resources of Snakemake's Slurm plugin that would be dropped without a word, and what to give instead."""


OURS = {
    "comment": "by it the job of a run is found again",
    "job-name": "it names the experiment; by it the job is found where the site writes other comments",
    "nodes": "trainer.nodes and rollout.nodes of the configuration say how many there are",
    "ntasks": INSTEAD["tasks"],
    "ntasks-per-node": INSTEAD["tasks"],
    "array": "a run is one job",
    "requeue": "a preempted job comes back by itself",
    "no-requeue": "a preempted job must come back under its id",
    "signal": "the end of the wall-time is asked of Slurm",
    "output": "the job writes into the directory of its run",
    "error": "the job writes into the directory of its run",
    "chdir": "all paths are those of the working directory",
}
"""Options of sbatch that `slurm_extra` cannot change."""


def slurm_parameters(
    name: str, nodes: int, comment: str, resources: Mapping[str, Any], *, requeue: bool = True
) -> dict[str, Any]:
    """Translate the resources of the Snakemake rule and profile into those of submitit.

    The number of nodes comes from the configuration; everything else from the rule, the profile or
    `--set-resources`, so that one way of asking works for every stage.

    Raises:
        SubmissionFailed: `slurm_extra` cannot be read, or a resource that Snakemake's plugin knows has no
            meaning here.
    """
    parameters: dict[str, Any] = {
        "job_name": job_name(name),
        "comment": comment,
        "nodes": nodes,
        "ntasks_per_node": 1,
        "stderr_to_stdout": True,
        "wckey": None,
        "additional_parameters": {
            # a preempted job, or one whose node failed, comes back under its id
            "requeue" if requeue else "no-requeue": True,
            # in place of submitit's USR2, which would kill a task that is still importing; CONT does nothing
            "signal": "CONT@1",
        },
    }
    if dropped := sorted(INSTEAD.keys() & resources.keys()):
        raise SubmissionFailed(
            "not for a job that knows its nodes and programs: "
            + ", ".join(f"resource {key} = {resources[key]} ({INSTEAD[key]})" for key in dropped)
        )
    names = {
        "slurm_partition": "partition",
        "slurm_account": "account",
        "qos": "qos",
        "constraint": "constraint",
        "runtime": "time",
        "cpus_per_task": "cpus_per_task",
        "gres": "gres",
    }
    # as in Snakemake's plugin, a negative number of CPUs asks for none, where a site does not allow to ask
    given = {name: value for name, value in resources.items() if name != "cpus_per_task" or int(value) > 0}
    parameters |= {ours: given[name] for name, ours in names.items() if given.get(name)}
    if resources.get("mem_mb_per_cpu"):
        parameters["mem_per_cpu"] = f"{resources['mem_mb_per_cpu']}M"
    elif resources.get("mem_mb"):
        parameters["mem"] = f"{resources['mem_mb']}M"
    # supervisors end by themselves: neither the end nor the failure of one may end the others
    parameters["srun_args"] = ["--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none"]
    if given.get("cpus_per_task"):
        # srun does not take it from sbatch any more (Slurm 22.05) and would give each task one CPU
        parameters["srun_args"].append(f"--cpus-per-task={given['cpus_per_task']}")
    if extra := resources.get("slurm_extra"):
        parameters["additional_parameters"] |= extra_options(str(extra))
    return parameters


def extra_options(text: str) -> dict[str, Any]:
    """Read `slurm_extra` ("--exclusive --nice=10") as options of sbatch.

    Raises:
        SubmissionFailed: a part is not of the form --name or --name=value, or says what the launcher says.
    """
    options: dict[str, Any] = {}
    for part in text.split():
        if not part.startswith("--"):
            raise SubmissionFailed(f"slurm_extra: {part!r} is not of the form --name or --name=value")
        name, separator, value = part[2:].partition("=")
        if name in OURS:
            raise SubmissionFailed(f"slurm_extra: {part!r} is not for you to give: {OURS[name]}")
        options[name] = value if separator else True
    return options


def _submit_local(run: RunDirectory, launch: Launch, continues: Sequence[str]) -> Job:
    if len(launch.placement.nodes) > 1:
        raise SubmissionFailed(
            f"this placement needs {len(launch.placement.nodes)} nodes, the local launcher has one machine; "
            "use --profile slurm, or share the node with rollout.nodes: 0 and rollout.gpus"
        )
    # in a session of its own: closing the terminal ends the driver, not the job
    argv = [sys.executable, "-m", "grpoflow.launch.local", str(run.path), *continues]
    answered = subprocess.run(argv, capture_output=True, text=True, check=False, start_new_session=True)
    if answered.returncode != 0:
        raise SubmissionFailed(f"the local job could not be started:\n{answered.stderr}")
    job = recorded_job(run)  # by the program itself, so that no death between the two loses it
    if job is None:
        raise SubmissionFailed(f"{' '.join(argv)} recorded no job")
    return job
