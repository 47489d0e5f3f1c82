"""What follows the end of an attempt: nothing, a new try in the same job, or the job back in the queue.

The budget is `trainer.max_restarts`: attempts in a row that end without a new checkpoint. A run that gets
further is restarted as often as its wall-time needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpoflow.files import read_json
from grpoflow.metrics import read_steps

from .quality import accepted_checkpoint
from .run import Launch, RunDirectory

Action = Literal["end", "again", "requeue"]


@dataclass(frozen=True)
class Verdict:
    action: Action
    why: str

    @property
    def goes_on(self) -> bool:
        return self.action != "end"


def judge(run: RunDirectory, launch: Launch, jobs: Sequence[str], end: dict[str, Any]) -> Verdict:
    """Decide after the last attempt of these jobs ended as `end` says (`Attempt.finish`)."""
    status = end["status"]
    if status in ("complete", "cancelled"):
        return Verdict("end", end["cause"])
    if status == "preempted":
        return Verdict("requeue", end["cause"])
    if end["lasting"]:
        return Verdict("end", "not tried again: another attempt would meet the same cause")
    if status == "failed" and not end["accident"] and not read_steps(run.log):
        return Verdict("end", "not tried again: nothing was trained yet, so this is no accident of a run")
    limit = launch.config.trainer.max_restarts
    fruitless = fruitless_attempts(run, jobs)
    if fruitless > limit:
        return Verdict(
            "end",
            f"not tried again: {fruitless} attempts in a row ended without a new checkpoint "
            f"(trainer.max_restarts: {limit})",
        )
    action: Action = "requeue" if status == "stopped" else "again"
    why = f"attempt {fruitless} of {limit + 1} without a new checkpoint" if fruitless else ""
    return Verdict(action, why)


def fruitless_attempts(run: RunDirectory, jobs: Sequence[str]) -> int:
    """The last attempts of these jobs, counted back to the one that got further than the newest checkpoint.

    Those that Slurm or a person ended count for nothing: they say nothing about the run.
    """
    newest = accepted_checkpoint(run)
    step = newest.step if newest else 0
    count = 0
    for attempt in reversed(run.attempts(jobs)):
        if read_json(attempt.facts)["resume_step"] < step:
            break
        status = read_json(attempt.end)["status"] if attempt.end.is_file() else ""
        count += status in ("failed", "stopped")
    return count
