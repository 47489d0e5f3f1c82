"""One program of a stage over several nodes: a Slurm job, one task per node, each with a share of the ranks.

The driver, `Gang.run`, waits for the job; the tasks, `run_member`, agree through files in a directory on the
shared filesystem. One failed member ends all. Nothing resumes: a stage that failed starts anew, as the stages
of one node do, and a job whose driver was killed is ended by the next driver.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit

from grpoflow.commands.base import Command
from grpoflow.commands.environment import clean_environment
from grpoflow.config import Config
from grpoflow.config.identity import digest
from grpoflow.files import create_once, read_json, write_json

from . import slurm
from .driver import DriverOrphaned
from .explain import explain
from .job import SlurmJob, SubmissionFailed, slurm_parameters
from .leader import Leader
from .ports import free_port
from .process import how_it_ended, log_excerpt, start
from .task import this_task

POLL_SECONDS = 0.5
ASK_SECONDS = 5.0
NODES_SECONDS = 300.0
CANCEL_SECONDS = 180.0


class GangFailed(Exception):
    """A member failed, or Slurm ended the job. The message has the cause."""


@dataclass(frozen=True)
class Gang:
    """The program, one command per node; MASTER_ADDR and MASTER_PORT of each are filled in by the job."""

    name: str
    """Of the program: names its job and its logs."""
    owner: str
    """Whose it is (stage and result): by it a job that a killed driver left is recognised."""
    directory: Path
    """On the shared filesystem, new for each run."""
    config: Config
    commands: Sequence[Command]
    logs: Path

    @property
    def comment(self) -> str:
        return f"{self.name} {digest(self.owner)}"

    def log(self, node: int) -> Path:
        return self.logs / f"{self.name}-{node}.log"

    def run(
        self,
        resources: Mapping[str, Any],
        say: Callable[[str], None],
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Submit the job and wait for its end; a Ctrl-C, or the end of Snakemake, cancels it.

        Raises:
            SubmissionFailed: Slurm refused it.
            GangFailed: it did not succeed on all nodes.
            DriverOrphaned: Snakemake has ended.
        """
        self._end_what_was_left(say)
        self._write()
        leader, asked, said = Leader.of_this_stage(), 0.0, ""
        submitted: list[SlurmJob] = []
        try:
            # a Ctrl-C waits until the job's number is known: it could not be cancelled otherwise
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                job = self._submit(resources)
                submitted.append(job)
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            say(f"{self.name}: job {job.id} on {len(self.commands)} nodes (logs: {self.log(0).parent})")
            while True:
                if time.monotonic() - asked > ASK_SECONDS:
                    asked, state = time.monotonic(), job.state()
                    if state == "gone":
                        break
                    text = f"{self.name}: job {job.id}: {state} {job.reason() if state == 'pending' else ''}"
                    if text != said:
                        said = text
                        say(text.rstrip())
                if not leader.is_alive():
                    raise DriverOrphaned(f"Snakemake has ended; job {job.id} is cancelled")
                progress()
                time.sleep(POLL_SECONDS)
        except BaseException:
            for job in submitted:
                _cancel(job)
            raise
        self._judge(job)

    def _end_what_was_left(self, say: Callable[[str], None]) -> None:
        try:
            for left in slurm.jobs_with_comment(self.comment):
                say(f"{self.name}: cancelling job {left}, which a former driver left")
                if not _cancel(SlurmJob(left)):
                    raise SubmissionFailed(f"job {left}, which a former driver left, does not end")
        except slurm.NoAnswer as error:
            raise SubmissionFailed(f"Slurm does not answer: {error}") from error

    def _write(self) -> None:
        self.directory.mkdir(parents=True)
        write_json(
            self.directory / "gang.json",
            {
                "name": self.name,
                "owner": self.owner,
                "config": self.config.model_dump(mode="json"),
                "commands": [{"argv": list(command.argv), "env": command.env} for command in self.commands],
                "logs": str(self.logs.absolute()),
            },
        )

    def _submit(self, resources: Mapping[str, Any]) -> SlurmJob:
        executor = submitit.SlurmExecutor(self.directory / "submitit")
        try:
            parameters = slurm_parameters(
                self.name, len(self.commands), self.comment, resources, requeue=False
            )
            executor.update_parameters(**parameters)
            with submitit.helpers.clean_env():
                job = executor.submit(run_member, str(self.directory.absolute()))
        except submitit.core.utils.FailedJobError as error:
            raise SubmissionFailed(f"sbatch refused the job: {error}") from error
        return SlurmJob(job.job_id)

    def _judge(self, job: SlurmJob) -> None:
        failure = self.directory / "failure.json"
        if failure.is_file():
            raise GangFailed(read_json(failure)["cause"])
        missing = [i for i in range(len(self.commands)) if not self.ended(i).is_file()]
        if missing:
            ended = job.reason() or "Slurm does not know it any more"
            nodes = ", ".join(map(str, missing))
            raise GangFailed(f"job {job.id} of {self.name} ended ({ended}) before node {nodes} was done")

    def ended(self, node: int) -> Path:
        return self.directory / "ended" / f"{node}.json"

    @classmethod
    def read(cls, directory: Path) -> Gang:
        facts = read_json(directory / "gang.json")
        return cls(
            facts["name"],
            facts["owner"],
            directory,
            Config.model_validate(facts["config"]),
            [Command(tuple(command["argv"]), command["env"]) for command in facts["commands"]],
            Path(facts["logs"]),
        )


def run_member(path: str) -> None:
    """Run one node's share."""
    gang, task = Gang.read(Path(path)), this_task(os.environ)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    here, failure = gang.directory / "nodes", gang.directory / "failure.json"
    write_json(here / f"{task.node}.json", {"address": task.address, "port": free_port()})
    first = here / "0.json"
    deadline = time.monotonic() + NODES_SECONDS
    while not first.is_file():
        if signals or time.monotonic() > deadline:
            create_once(failure, {"cause": f"node {task.node} does not see {first}"})
            return
        time.sleep(POLL_SECONDS)
    master, command, log = read_json(first), gang.commands[task.node], gang.log(task.node)
    told = {"MASTER_ADDR": master["address"], "MASTER_PORT": str(master["port"])}
    whole = Command(command.argv, {**command.env, **told})
    program = start(gang.name, whole, clean_environment(gang.config, os.environ), log)
    while (code := program.poll()) is None and not signals and not failure.is_file():
        time.sleep(POLL_SECONDS)
    if code:
        what = f"{gang.name} on node {task.node} {how_it_ended(code)}"
        create_once(failure, {"cause": "\n".join([explain([log], what).text, log_excerpt(log)])})
    elif signals:
        create_once(failure, {"cause": f"{gang.name}: the job received {signal.Signals(signals[0]).name}"})
    elif code == 0:
        write_json(gang.ended(task.node), {})
    program.stop()


def _cancel(job: SlurmJob) -> bool:
    """Cancel until the job has ended, or long enough: a controller that restarts hears nothing at first."""
    deadline = time.monotonic() + CANCEL_SECONDS
    while time.monotonic() < deadline:
        job.cancel()
        if job.state() == "gone":
            return True
        time.sleep(POLL_SECONDS)
    return False
