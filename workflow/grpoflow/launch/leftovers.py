"""Processes that a former attempt left on this node: they would hold GPU memory that this one needs.

Every program of a run inherits the variables MARK and ATTEMPT, by which its processes are recognised whatever
they call themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK, ATTEMPT = "GRPOFLOW_RUN", "GRPOFLOW_ATTEMPT"
SECONDS = 20.0


def leftovers(run: Path, attempt: str) -> list[int]:
    """Processes of this user that belong to another attempt of the run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            content = path.read_bytes()
        except OSError:
            continue  # ended, or another user's
        lines = content.decode(errors="replace").split("\0")
        if f"{MARK}={run}" in lines and f"{ATTEMPT}={attempt}" not in lines:
            found.append(int(path.parent.name))
    return found


def sweep(run: Path, attempt: str) -> list[int]:
    """SIGKILL the leftovers and wait until they are gone; return those that were found."""
    found = leftovers(run, attempt)
    deadline = time.monotonic() + SECONDS
    pids = found
    while pids and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        pids = leftovers(run, attempt)
    return found
