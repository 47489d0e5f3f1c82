"""What Slurm is asked and told: squeue, scontrol and scancel, never sacct, which not every cluster has.

No answer is an answer of its own (`NoAnswer`): a controller that restarts has not ended any job.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

SECONDS = 30.0
UNKNOWN_JOB = "Invalid job id"
WAITS = ("Required Node not available", "Requested nodes are busy", "DOWN, DRAINED")
"""What `sbatch --test-only` calls a failure and sbatch itself leaves pending: nodes that are down, or in a
maintenance reservation, for now."""
UNREACHABLE = ("Unable to contact", "Connection refused", "resolve_ctls_from_dns", "Unable to process config")
FIELD = re.compile(r"(?:^|\s)([A-Za-z_:/]+)=(\S*)")
PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"}
RUNNING = {"RUNNING", "COMPLETING", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}


class NoAnswer(Exception):
    """Slurm did not answer, or not in a way that can be understood."""


class Refused(Exception):
    """Slurm answered and did not do what it was told. The message is Slurm's."""


@dataclass(frozen=True)
class JobFacts:
    """What Slurm knows of a job. Times in seconds since the epoch, None where there is none."""

    state: str
    reason: str
    restarts: int
    started: float | None
    end: float | None
    """When the wall-time ends the job; for an ended job, when it ended."""
    limit: float | None
    """Seconds of wall-time, None without a limit."""
    is_preempted: bool
    """It was told to make room, and runs on for the grace time of its partition."""
    name: str = ""

    @property
    def is_pending(self) -> bool:
        return self.state in PENDING

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING


def is_here() -> bool:
    """Whether this machine can ask a Slurm at all."""
    return shutil.which("scontrol") is not None


def job_facts(job_id: str, seconds: float = SECONDS) -> JobFacts | None:
    """Ask about a job; None when Slurm does not know it (any more).

    Raises:
        NoAnswer: Slurm cannot be asked now.
    """
    asked = _client(["scontrol", "show", "job", job_id, "--oneliner"], seconds)
    if asked.returncode != 0:
        if UNKNOWN_JOB in asked.stderr:
            return None
        raise NoAnswer(asked.stderr.strip())
    found = dict(FIELD.findall(asked.stdout))
    if "JobState" not in found:
        raise NoAnswer(f"scontrol show job {job_id}: {asked.stdout!r}")
    return JobFacts(
        state=found["JobState"],
        reason=found.get("Reason", ""),
        restarts=int(found.get("Restarts", 0)),
        started=_time(found.get("StartTime")),
        end=_time(found.get("EndTime")),
        limit=_duration(found.get("TimeLimit", "")),
        is_preempted=_time(found.get("PreemptTime")) is not None,
        name=found.get("JobName", ""),
    )


def jobs_with_comment(comment: str) -> list[str]:
    """The jobs of this user that have not ended and have this comment, oldest first.

    Raises:
        NoAnswer: Slurm cannot be asked now.
    """
    asked = _client(["squeue", "--me", "--noheader", "--format", "%i|%k"], SECONDS)
    if asked.returncode != 0:
        raise NoAnswer(asked.stderr.strip())
    rows = [line.strip().partition("|") for line in asked.stdout.splitlines()]
    return sorted((job for job, _, found in rows if found == comment), key=int)


def cancel(job_id: str) -> None:
    """Cancel a job; nothing happens when it has ended.

    Raises:
        NoAnswer: Slurm cannot be told now.
    """
    told = _client(["scancel", job_id], SECONDS)
    if told.returncode != 0 and UNKNOWN_JOB not in told.stderr:
        raise NoAnswer(told.stderr.strip())


def requeue(job_id: str) -> None:
    """End a job and put it back into the queue under its id; possible from within the job.

    Raises:
        Refused: this cluster or this job does not allow it.
        NoAnswer: Slurm cannot be told now.
    """
    told = _client(["scontrol", "requeue", job_id], SECONDS)
    if told.returncode == 0:
        return
    if any(sign in told.stderr for sign in UNREACHABLE):
        raise NoAnswer(told.stderr.strip())
    raise Refused(told.stderr.strip())


def rehearse(script: str) -> str:
    """What Slurm says to a batch script that it is not to run: when and where it would start.

    Raises:
        Refused: it would not take it.
        NoAnswer: Slurm cannot be asked now, or there is none.
    """
    told = _client(["sbatch", "--test-only"], SECONDS, script)
    said = " ".join(line.removeprefix("sbatch: ").strip() for line in told.stderr.splitlines())
    if told.returncode == 0:
        return said
    if any(sign in said for sign in UNREACHABLE):
        raise NoAnswer(said)
    if any(sign in said for sign in WAITS):
        return f"it would have to wait: {said}"
    raise Refused(said)


def node_address(name: str) -> str:
    """The address under which Slurm itself reaches a node; host names need not resolve everywhere."""
    asked = _client(["scontrol", "show", "node", name, "--oneliner"], SECONDS)
    found: dict[str, str] = dict(FIELD.findall(asked.stdout))
    return found.get("NodeAddr", name)


def failed_nodes(nodes: str) -> list[str]:
    """Those of a list of nodes (a800-[0-3]) that Slurm has given up; none when it does not answer."""
    try:
        asked = _client(["sinfo", "--noheader", "--Node", "--nodes", nodes, "--format", "%N %T"], SECONDS)
    except NoAnswer:
        return []
    rows = dict(line.split() for line in asked.stdout.splitlines() if line.strip())
    return sorted(
        node for node, state in rows.items() if state.rstrip("*$~#!%@").startswith(("down", "fail"))
    )


def _client(argv: Sequence[str], seconds: float, given: str = "") -> subprocess.CompletedProcess[str]:
    # formats of the person who runs this would change what we read
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SLURM_TIME"))
    }
    try:
        return subprocess.run(
            argv, input=given, capture_output=True, text=True, check=False, timeout=seconds, env=ours
        )
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{' '.join(argv)}: no answer in {seconds:.0f} s") from error
    except OSError as error:
        raise NoAnswer(f"{argv[0]}: {error}") from error


def _time(text: str | None) -> float | None:
    """Slurm prints local time without saying so."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return None  # Unknown, None, N/A


def _duration(text: str) -> float | None:
    """Seconds of `[days-]hours:minutes:seconds`."""
    days, _, clock = text.rpartition("-")
    try:
        hours, minutes, seconds = (int(part) for part in clock.split(":"))
        return float((int(days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds)
    except ValueError:
        return None  # UNLIMITED, Partition_Limit
