"""When the job ends, as Slurm itself says, and what a SIGTERM means."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from grpoflow.files import write_json

from . import slurm
from .run import AttemptKey, Status

ASK_SECONDS = 30.0
SIGNAL_SECONDS = 5.0
CLOCK_SECONDS = 5.0
OVER = "the wall-time was over before the training had stopped"


class DeadlineKeeper:
    """Writes the file that the training callback reads, again whenever Slurm changes the end of the job.

    A thread of its own: while slurmctld restarts, each question takes its time-out.
    """

    def __init__(self, path: Path, job: str | None, margin: float):
        self._path, self._job, self._margin = path, job, margin
        self._end: float | None = None
        self._stop = threading.Event()
        self._writing = threading.Lock()

    def start(self) -> None:
        self._write(None)
        if self._job is not None:
            threading.Thread(target=self._run, args=(self._job,), daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def stop_now(self) -> None:
        """Tell the training to save and stop at its next step boundary."""
        with self._writing:  # an answer of Slurm's that is being written would hide this one
            self.stop()
            self._write(time.time())

    def remaining(self) -> float:
        """Seconds until the job ends; infinite without a limit."""
        return math.inf if self._end is None else self._end - time.time()

    def _run(self, job: str) -> None:
        while not self._stop.is_set():
            try:
                facts = slurm.job_facts(job)
            except slurm.NoAnswer:
                facts = None  # what was known still holds
            with self._writing:
                known = facts is None or not facts.is_running or facts.end == self._end
                if facts is not None and not known and not self._stop.is_set():
                    try:
                        self._write(facts.end)
                    except OSError as error:  # a full disk may have room again when it is asked next
                        print(f"{self._path}: {error}", file=sys.stderr, flush=True)
            self._stop.wait(ASK_SECONDS)

    def _write(self, end: float | None) -> None:
        write_json(self._path, {"end": end, "margin": self._margin})
        self._end = end


@dataclass(frozen=True)
class Signalled:
    """Why Slurm sent SIGTERM to a job."""

    status: Status
    why: str
    grace: float | None = None
    """Seconds that a preempted job may go on."""


def end_of_signalled_job(key: AttemptKey, known_end: float | None) -> Signalled:
    """Ask Slurm why it sent SIGTERM: it says so in the state of the job, not in the signal.

    known_end: when the wall-time is over, in seconds since the epoch, as Slurm said before.
    """
    now = time.time()
    try:
        facts = slurm.job_facts(key.job, SIGNAL_SECONDS)
        silence = "Slurm does not know the job any more"
    except slurm.NoAnswer as error:
        facts, silence = None, f"Slurm does not say why ({error})"
    if facts is None:
        over = known_end is not None and now > known_end - CLOCK_SECONDS
        return Signalled("stopped", OVER) if over else Signalled("cancelled", silence)
    if facts.restarts > key.restart:
        failed = slurm.failed_nodes(os.environ.get("SLURM_JOB_NODELIST", ""))
        why = f"node failure of {', '.join(failed)}" if failed else "preemption, or a requeue by hand"
        return Signalled("preempted", f"Slurm put the job back into the queue: {why}")
    if facts.is_preempted and facts.state == "RUNNING" and facts.end is not None:
        return Signalled("preempted", "the job makes room for one of higher priority", facts.end - now)
    if facts.is_preempted:  # seen before its restart is counted; a person's scancel meanwhile the driver sees
        return Signalled("preempted", "Slurm put the job back into the queue: preemption")
    late = facts.limit and facts.started and now > facts.started + facts.limit - CLOCK_SECONDS
    if late or facts.reason == "TimeLimit":
        return Signalled("stopped", OVER)
    return Signalled("cancelled", "the job was cancelled")
