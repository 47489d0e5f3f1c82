"""Processes that a former attempt left on this node: they would hold GPU memory that this one needs.

They are recognised by the log file that they still write to. Neither their name nor their environment would
do: vLLM overwrites both in its workers (setproctitle).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

SECONDS = 20.0


def writers(directories: Iterable[str]) -> list[int]:
    """Processes of this user whose standard output or error is a file in one of the directories."""
    wanted = set(directories)
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        for stream in ("1", "2"):
            try:
                log = (path / "fd" / stream).readlink()
            except OSError:
                break  # ended, or another user's
            if str(log.parent) in wanted:
                found.append(int(path.name))
                break
    return sorted(found)


def sweep(directories: Iterable[str]) -> list[int]:
    """SIGKILL those processes and wait until they are gone; return those that were found."""
    wanted = set(directories)
    found = pids = writers(wanted) if wanted else []
    deadline = time.monotonic() + SECONDS
    while pids and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        pids = writers(wanted)
    return found
