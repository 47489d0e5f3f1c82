"""Starts the job of a run on this machine through submitit's local executor, prints its id, and ends.

python -m grpoflow.launch.local RUN_DIRECTORY
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import submitit

from .node import run_node
from .run import RunDirectory

ENDLESS_MINUTES = 60 * 24 * 365


def main(argv: list[str]) -> int:
    run = RunDirectory(Path(argv[0]))
    executor = submitit.LocalExecutor(run.submitit)
    executor.update_parameters(timeout_min=ENDLESS_MINUTES, stderr_to_stdout=True)
    answer = os.dup(1)
    # the controller inherits the standard streams: held open, they would keep the caller waiting
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    job = executor.submit(run_node, str(run.path))
    os.write(answer, f"{job.job_id}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
