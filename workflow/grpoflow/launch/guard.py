"""A small process between a supervisor and a program, which leaves nothing behind.

    python -I guard.py PARENT_PID -- ARGV...

A rollout server that gets SIGTERM leaves its vLLM workers running (over 2 GB each), torchrun leaves its ranks
when it is killed, and a supervisor that is killed cannot clean up at all. The guard adopts every orphan below
it (PR_SET_CHILD_SUBREAPER), ends all of them when the program ends, when it is told to, and when its parent
dies. Its exit code is that of the program, 128 + N for signal N.

Only the standard library: it starts in some 50 ms, once per program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 10.0
POLL_SECONDS = 0.1
EMPTY_LOOKS = 3


def children(pid: int) -> list[int]:
    """Direct children of a process, zombies left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # the command name is in parentheses and may hold spaces: the fields start after the last one
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it ended between the listing and the reading
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def descendants(pid: int) -> list[int]:
    """All processes below a process."""
    below = children(pid)
    return below + [deeper for child in below for deeper in descendants(child)]


def end_descendants(grace: float = GRACE_SECONDS) -> None:
    """SIGTERM everything below this process, wait, SIGKILL what is left."""
    deadline = time.monotonic() + grace
    told: set[int] = set()
    # one look is not enough: /proc is read one process after the other, and a child whose parent dies in
    # between belongs to neither
    empty = 0
    while empty < EMPTY_LOOKS:
        pids = descendants(os.getpid())
        empty = 0 if pids else empty + 1
        number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
        for pid in pids:
            if number == signal.SIGKILL or pid not in told:
                told.add(pid)
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
        reap()
        time.sleep(POLL_SECONDS)


def reap(program: int = 0) -> None:
    """Take the exit status of adopted orphans, so that they do not stay as zombies; that of the program
    itself is left to its own waiter."""
    try:
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == program:
                return
            os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        pass


def main(argv: list[str]) -> int:
    parent, separator, command = int(argv[0]), argv[1], argv[2:]
    if separator != "--" or not command:
        raise SystemExit("usage: guard.py PARENT_PID -- ARGV...")
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: stop.append(received))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the request above
        return 128 + signal.SIGTERM
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while process.poll() is None and not stop:
        reap(process.pid)
        time.sleep(POLL_SECONDS)
    code = process.poll()
    end_descendants()
    if code is None:
        code = -stop[0]
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
