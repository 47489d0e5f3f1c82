"""What an interrupted Snakemake does about the stages of this machine and about their RL job."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from types import FrameType

from .driver import cancel_job
from .guard import descendants
from .leader import Leader
from .lock import DriverLock
from .run import driven_by


def lead_stages() -> None:
    """Make this process, Snakemake, known to its stages, pass SIGINT on to them, and leave no RL job behind.

    A Ctrl-C reaches the stages anyhow, but `kill -INT` reaches Snakemake alone, which then waits for them
    without telling them. Stages with a session of their own end by themselves when theirs is over.
    """
    Leader.this_process().announce()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _forward)


def _forward(number: int, frame: FrameType | None) -> None:
    atexit.unregister(_cancel_what_is_left)  # of a former interrupt
    atexit.register(_cancel_what_is_left)
    own = os.getsid(0)
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if os.getsid(pid) == own:
                os.kill(pid, number)
    signal.default_int_handler(number, frame)


def _cancel_what_is_left() -> None:
    """Cancel the job that no stage could cancel: the one has ended, or the next was only starting."""
    for run in driven_by(str(Leader.this_process())):
        lock = DriverLock(run.lock)
        try:
            cancel_job(run, lock, lambda text: print(text, file=sys.stderr, flush=True))
        finally:
            lock.release()
