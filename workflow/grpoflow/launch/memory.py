"""Whether the kernel killed processes of this job for memory: it says so in the control group alone."""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
FILES = ("memory.events", "memory.oom_control")  # control groups v2, v1


def oom_kills(membership: Path = Path("/proc/self/cgroup"), root: Path = ROOT) -> int:
    """How many processes were killed for memory in the control group of this process or in one above it, up
    to the whole job; 0 where there are no control groups."""
    most = 0
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        group = root / controllers / path.strip("/")
        for directory in (group, *group.parents):
            if directory in (root, root / "memory"):
                break
            for name in FILES:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    counts = dict(row.split() for row in (directory / name).read_text().splitlines())
                    most = max(most, int(counts["oom_kill"]))
    return most
