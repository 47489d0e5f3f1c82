"""Whether the supervisors of the other nodes live: each touches its file and looks at the others."""

from __future__ import annotations

import os
import time

from grpoflow.files import read_json

from .run import Attempt

SILENT_SECONDS = 120.0
"""Longer than an NFS client may show old times of modification (acregmax, 60 s)."""


class Heartbeats:
    """The heartbeat of one node and its view of the others."""

    def __init__(self, attempt: Attempt, node: int, nodes: int):
        self._attempt, self._node, self._nodes = attempt, node, nodes
        self._seen: dict[int, tuple[float, float]] = {}

    def beat(self) -> str:
        """Show that this supervisor lives; return the host of one that is silent, or an empty text."""
        os.utime(self._attempt.node(self._node))
        now = time.monotonic()
        for index in range(self._nodes):
            path = self._attempt.node(index)
            if index == self._node or not path.is_file():
                continue
            stamp = path.stat().st_mtime
            known, when = self._seen.get(index, (0.0, now))
            # since when it stands still by this node's own clock: those of the nodes need not agree
            self._seen[index] = (stamp, now if stamp != known else when)
            if now - self._seen[index][1] > SILENT_SECONDS:
                return str(read_json(path)["host"])
        return ""
