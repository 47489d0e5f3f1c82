"""Starts the job of a run on this machine through submitit's local executor, records it, and ends.

python -m grpoflow.launch.local RUN_DIRECTORY [CONTINUED_JOB ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import submitit

from .gpus import SHOWN
from .job import LocalJob, record
from .node import run_node
from .processes import process_start
from .run import RunDirectory

ENDLESS_MINUTES = 60 * 24 * 365


def main(argv: list[str]) -> int:
    run = RunDirectory(Path(argv[0]))
    executor = submitit.LocalExecutor(run.submitit)
    executor.update_parameters(timeout_min=ENDLESS_MINUTES, stderr_to_stdout=True)
    os.environ[SHOWN] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    # the controller inherits the standard streams: held open, they would keep the caller waiting
    nothing = os.open(os.devnull, os.O_RDWR)
    error = os.dup(2)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    try:
        job = executor.submit(run_node, str(run.path))
    finally:
        os.dup2(error, 2)
    record(run, LocalJob(job.job_id, process_start(int(job.job_id))), argv[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
