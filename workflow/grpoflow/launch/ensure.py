"""`ensure_allocation`: one call for both rules of the RL job, right in every state.

Attach to the live job of this run, else submit one; when training is complete, do nothing.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from grpoflow.files import write_json

from .completion import is_complete
from .job import Job, recorded_job, submit
from .run import Launch, RunDirectory


def ensure_allocation(
    run: RunDirectory, launch: Launch, launcher: str, resources: Mapping[str, Any]
) -> Job | None:
    """Return the live job of a run, submitted if there is none; None when the training is complete.

    Two drivers may call this at once: a lock makes the second one find the job of the first.

    Raises:
        SubmissionFailed: the job could not be submitted.
    """
    run.path.mkdir(parents=True, exist_ok=True)
    with _locked(run):
        job = recorded_job(run)
        if job is not None and job.state() != "gone":
            return job
        if is_complete(launch.config, run.output):
            return None
        launch.write(run.launch)
        job = submit(run, launcher, resources)
        write_json(run.job, job.facts())
        return job


@contextmanager
def _locked(run: RunDirectory) -> Iterator[None]:
    with (run.path / "driver.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
