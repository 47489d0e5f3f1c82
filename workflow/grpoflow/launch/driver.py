"""The driver of a run: what the rules rollout_server and train_grpo do while they wait.

`ensure_allocation` is right in every state: it attaches to the live job of this run, else, when the training
is complete, does nothing, else submits. `wait` follows the job, submits it again where Slurm ended it for
good and the budget allows, and cancels it on Ctrl-C. Everything else that ends a driver leaves the job alone.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, get_args

from grpoflow.files import read_json, write_text
from grpoflow.metrics import LogFollower, describe

from . import slurm
from .completion import is_complete
from .job import Job, State, end_job, has_ended, live_slurm_job, record, recorded_job, submit
from .leader import Leader
from .lock import DriverLock
from .quality import set_aside_refused
from .resume import check_resume
from .run import AttemptKey, Launch, RunDirectory, Status
from .verdict import judge

POLL_SECONDS = 2.0
LONGEST_ASK_SECONDS = 30.0
ASK_SHARE = 20
OURS_TO_REPEAT = {"NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "FAILED", "PREEMPTED", "BOOT_FAIL", "COMPLETED"}
"""How Slurm may say that a job ended, of which no supervisor was left to say why. CANCELLED is a wish, and of
an end that nobody knows nothing is concluded."""


class JobFailed(Exception):
    """The job ended and the training is not complete. The message has the cause."""


class DriverOrphaned(Exception):
    """Snakemake has ended without telling this stage to stop. The job goes on."""


@dataclass
class Driver:
    """One driver of one run; a context manager that gives the lock back."""

    run: RunDirectory
    launch: Launch
    launcher: str
    resources: Mapping[str, Any]
    say: Callable[[str], None]
    lock: DriverLock = field(init=False)
    leader: Leader = field(default_factory=Leader.of_this_stage)
    handles: bool = False
    interrupted: bool = False
    told: set[str] = field(default_factory=set)

    def __enter__(self) -> Driver:
        self.run.path.mkdir(parents=True, exist_ok=True)
        self.lock = DriverLock(self.run.lock)
        # Ctrl-C may come twice, from the terminal and from Snakemake; ignored at the start it stays ignored
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            self.handles = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None and issubclass(kind, KeyboardInterrupt):
                cancel_job(self.run, self.lock, self.say)
        finally:
            self.lock.release()
            if self.handles:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.interrupted:
            self.interrupted = True
            signal.default_int_handler(number, frame)

    def ensure_allocation(self) -> Job | None:
        """Return the live job of the run, submitted if there is none; None when the training is complete.

        Raises:
            SubmissionFailed: the job could not be submitted.
            ResumeRefused: the layout was changed in a way that the last checkpoint does not allow.
            DriverOrphaned: Snakemake died meanwhile.
        """
        said = ""
        while True:
            try:
                job = self._live()
            except slurm.NoAnswer as error:
                said = self._say_once(f"Slurm does not answer: {error}", said)
            else:
                if job is not None:
                    self._attach(job)
                    return job
                if self._is_complete():
                    return None
                # a job that another driver submitted just now is found by looking once more under the lock
                had_it = self.lock.is_mine()
                if self._take_lock():
                    if had_it:
                        return self._submit(())
                    continue
                said = self._say_once(f"waiting for another driver: {self.lock.owner}", said)
            self._look_around()
            time.sleep(POLL_SECONDS)

    def wait(self, job: Job, *, until_ready: bool) -> dict[str, Any]:
        """Follow the job until its servers are ready, or until the training is complete; return what the job
        says of itself (allocation.json).

        Raises:
            JobFailed: the job ended before that.
            DriverOrphaned: Snakemake died meanwhile.
        """
        said, last, reason = "", "", ""
        follower = LogFollower(self.run.log, from_start=True)
        begun, asked, state = time.monotonic(), 0.0, job.state()
        while True:
            now = time.monotonic()
            allocation = self._allocation(job)
            # the longer the wait, the fewer questions: the controller answers all users of the cluster
            pause = min(LONGEST_ASK_SECONDS, max(POLL_SECONDS, (now - begun) / ASK_SHARE))
            if now - asked >= pause or "verdict" in allocation:
                state, asked = job.state(), now
                reason = job.reason() if state == "pending" else ""
            if steps := follower.read():
                last = describe(steps[-1])
            self._tell_ends()
            self._tell_alarms()
            text = _describe(job, state, reason, allocation)
            said = self._say_once(text if until_ready else f"{text}  {last}".rstrip(), said)
            if until_ready and state == "running" and _serves(job, allocation):
                return allocation
            if state == "gone":
                if self._is_complete():
                    return allocation
                job = self._after(job)
                begun, state = time.monotonic(), "pending"
            self._look_around()
            time.sleep(POLL_SECONDS)

    # finding and submitting

    def _live(self) -> Job | None:
        """The job of this run that has not ended. Raises: NoAnswer."""
        # also one of another profile: two trainings would write into one directory
        job, can_ask = recorded_job(self.run), self.launcher == "slurm" or slurm.is_here()
        if job is not None and (job.kind == "local" or can_ask) and not has_ended(self.run, job):
            return job
        try:
            return live_slurm_job(self.run) if can_ask else None
        except slurm.NoAnswer as error:
            if self.launcher == "slurm":
                raise
            # a client whose cluster is gone or elsewhere: a local run would wait for ever for an answer
            self._say_new(f"Slurm does not answer, so no job of this run is looked for there: {error}")
            return None

    def _is_complete(self) -> bool:
        """Whether the training is, of which no job is left."""
        set_aside_refused(self.run)
        return is_complete(self.launch.config, self.run.output)

    def _attach(self, job: Job) -> None:
        recorded = recorded_job(self.run)
        if recorded is None or recorded.id != job.id:
            record(self.run, job, ())
        whose = "" if self._take_lock() else f"; {self.lock.owner} drives it"
        self.say(f"attached to job {job.id}{whose}")

    def _submit(self, continues: tuple[str, ...] | list[str]) -> Job:
        check_resume(self.run, self.launch)
        self.launch.write(self.run.launch)
        # a Ctrl-C waits until the job is recorded: it could not be cancelled otherwise
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            job = submit(self.run, self.launcher, self.resources, continues)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        self.say(f"submitted job {job.id}")
        return job

    # following

    def _after(self, job: Job) -> Job:
        """The job has ended and the training is not complete: submit it again, or fail.

        Raises:
            JobFailed: it is not to be repeated, or not by this driver.
        """
        jobs = self.run.jobs()
        ended = job.reason()
        attempts = self.run.attempts([job.id])
        end = read_json(attempts[-1].end) if attempts and attempts[-1].end.is_file() else None
        if end is not None and ended == "CANCELLED" and end["status"] != "cancelled":
            # it was waiting for its next attempt: what the last one says did not end it
            last = f"its last attempt: {end['status']}: {end['cause']}"
            raise JobFailed(f"job {job.id} was cancelled; {last}")
        if end is None:
            silent = itertools.takewhile(self._left_no_end, reversed(jobs))
            if ended not in OURS_TO_REPEAT or len(list(silent)) > self.launch.config.trainer.max_restarts:
                raise JobFailed(
                    f"job {job.id} ended and left no cause"
                    f"{f' (Slurm: {ended})' if ended else ' (Slurm does not know it any more)'}"
                )
            end = {
                "status": "failed",
                "cause": f"Slurm ended it: {ended}",
                "lasting": False,
                "accident": True,
            }
        verdict = judge(self.run, self.launch, jobs, end)
        message = f"job {job.id} ({end['status']}): {end['cause']}"
        if not verdict.goes_on or not self._take_lock():
            raise JobFailed(message if verdict.why in ("", end["cause"]) else f"{message}\n{verdict.why}")
        self.say(f"{message.splitlines()[0]}; submitting it again")
        return self._submit(jobs)

    def _tell_ends(self) -> None:
        """Say how each attempt ended and what follows, as soon as it is known."""
        for attempt in self.run.attempts(self.run.jobs()):
            name = attempt.path.name
            if name in self.told or not attempt.end.is_file():
                continue
            end = read_json(attempt.end)
            if attempt.verdict.is_file():
                action = read_json(attempt.verdict)["action"]
            elif end["status"] in ("preempted", "cancelled"):
                action = "end"  # of what Slurm ends, it also says what follows
            else:
                continue
            self.told.add(name)
            follows = {"end": "", "again": ", trying again", "requeue": ", back into the queue"}[action]
            self.say(f"attempt {name} {end['status']}{follows}: {end['cause']}")

    def _tell_alarms(self) -> None:
        """Say each alarm once, when it is raised."""
        for alarm in read_json(self.run.alarms) if self.run.alarms.is_file() else []:
            name = f"{alarm['attempt']} {alarm['step']} {alarm['gate']}"
            if name not in self.told:
                self.told.add(name)
                self.say(
                    f"alarm at step {alarm['step']}: {alarm['gate']}: {alarm['message']}. Known causes: "
                    + "; ".join(alarm["causes"])
                )

    def _left_no_end(self, job: str) -> bool:
        attempts = self.run.attempts([job])
        return not attempts or not attempts[-1].end.is_file()

    def _allocation(self, job: Job) -> dict[str, Any]:
        """What the job says of itself; nothing while it has not started."""
        try:
            allocation: dict[str, Any] = read_json(self.run.allocation)
        except (OSError, ValueError):
            return {}
        return allocation if allocation.get("job_id") == job.id else {}

    def _take_lock(self) -> bool:
        mine = self.lock.take()
        if mine:
            write_text(self.run.leader, str(self.leader))
        return mine

    def _look_around(self) -> None:
        self.lock.beat()
        if not self.leader.is_alive():
            raise DriverOrphaned("Snakemake has ended; the job, if there is one, goes on")

    def _say_new(self, text: str) -> None:
        if text not in self.told:
            self.told.add(text)
            self.say(text)

    def _say_once(self, text: str, said: str) -> str:
        if text != said:
            self.say(text)
        return text


def cancel_job(run: RunDirectory, lock: DriverLock, say: Callable[[str], None]) -> None:
    """Cancel the live job of a run, if the holder of this lock is the one that may, and wait for its end."""
    job = recorded_job(run)
    if job is None:
        return
    try:
        if has_ended(run, job):
            return
    except slurm.NoAnswer as error:
        say(f"Slurm does not answer: {error}")
    if not lock.take():
        say(f"job {job.id} goes on: {lock.owner} drives it")
        return
    say(f"cancelling job {job.id}")
    if end_job(run, job, lock.beat):
        say(f"job {job.id} is cancelled")
    else:
        say(f"job {job.id} is still there: look after it with squeue and scancel")


def _serves(job: Job, allocation: Mapping[str, Any]) -> bool:
    """Whether there are servers, and not those of an attempt that has ended: a requeued job runs again before
    its next attempt says so."""
    if not allocation.get("servers") or "verdict" in allocation or allocation["state"] in get_args(Status):
        return False
    try:
        return job.restarts() <= AttemptKey.parse(allocation["attempt"]).restart
    except slurm.NoAnswer:
        return False


def _describe(job: Job, state: State, reason: str, allocation: Mapping[str, Any]) -> str:
    if state == "unknown":
        return f"job {job.id}: Slurm does not answer"
    attempt = str(allocation.get("attempt", ""))
    again = f" (attempt {attempt})" if attempt and not attempt.endswith(".0.0") else ""
    what = allocation.get("state", state) if state == "running" else state
    return f"job {job.id}{again}: {what}{f' ({reason})' if reason else ''}"
