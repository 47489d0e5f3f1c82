"""One driver per run: a lock file with an owner and a heartbeat.

flock does not reach from one login node to another on every shared filesystem. The owner refreshes the file's
time of modification; a lock that was not refreshed for STALE seconds belongs to nobody. Ages are differences
of times that the filesystem's server wrote, so the clocks of the nodes need not agree.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from pathlib import Path
from typing import Any

from grpoflow.files import create_once, read_json, write_json

from .processes import process_start

STALE = 120.0
NOBODY = {"host": "", "boot": "", "pid": 0, "started": "", "token": "torn"}
"""The owner of a lock that cannot be read: being written, or left so by a machine that lost its power."""


class DriverLock:
    """The lock of one run, as one process sees it."""

    def __init__(self, path: Path):
        self._path = path
        self._me = {
            "host": socket.gethostname(),
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "pid": os.getpid(),
            "started": process_start(os.getpid()),
            "token": uuid.uuid4().hex,
        }

    def take(self) -> bool:
        """Become the owner if there is none; return whether this process is the owner now."""
        if self.is_mine() or create_once(self._path, self._me):
            return True
        owner = self._read()
        if owner is None:  # released just now
            return create_once(self._path, self._me)
        age = self._age()
        if not self._is_dead(owner) and age < STALE:
            return False
        # of those who find the same dead owner only one may take its place; should that one die before it
        # has, the next period has a marker of its own
        marker = self._path.with_name(f".{self._path.name}.{owner['token']}.{int(age // STALE)}")
        if not create_once(marker, self._me):
            return False
        # another one may have been through all of this since the owner was read
        still = self._read()
        vacant = still is not None and still["token"] == owner["token"]
        if vacant:
            write_json(self._path, self._me)
        marker.unlink(missing_ok=True)
        return vacant

    def beat(self) -> bool:
        """Show that the owner lives; return whether this process is the owner still."""
        if not self.is_mine():
            return False
        with contextlib.suppress(OSError):
            os.utime(self._path)
        return True

    def release(self) -> None:
        if self.is_mine():
            self._path.unlink(missing_ok=True)

    def is_mine(self) -> bool:
        owner = self._read()
        return owner is not None and owner.get("token") == self._me["token"]

    @property
    def owner(self) -> str:
        """Who holds the lock, for a message."""
        owner = self._read()
        return f"process {owner['pid']} on {owner['host']}" if owner and owner != NOBODY else "nobody"

    def _read(self) -> dict[str, Any] | None:
        try:
            owner: dict[str, Any] = read_json(self._path)
        except OSError:
            return None
        except ValueError:
            return NOBODY
        return owner

    def _is_dead(self, owner: dict[str, Any]) -> bool:
        """Whether the owner is known to have ended; of another machine nothing is known."""
        if (owner["host"], owner["boot"]) != (self._me["host"], self._me["boot"]):
            return False
        return process_start(int(owner["pid"])) != str(owner["started"])

    def _age(self) -> float:
        """Seconds since the last heartbeat, by the clock of the filesystem."""
        probe = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:8]}.now")
        try:
            probe.touch()
            return probe.stat().st_mtime - self._path.stat().st_mtime
        except OSError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)
