"""Which process of a program a test is to kill."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from grpoflow.launch.processes import process_start


def rank_of(pids: Iterable[int]) -> int:
    """The youngest of these processes that is no copy of its parent.

    A rank forks writers while it saves: without one of them it would wait for ever, and not end. Age is not
    in the numbers, which begin again at 32768.
    """
    return max((pid for pid in pids if not _is_copy(pid)), key=lambda pid: int(process_start(pid) or 0))


def _is_copy(pid: int) -> bool:
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return True  # it has ended
