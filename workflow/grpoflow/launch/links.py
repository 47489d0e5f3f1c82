"""Which node must reach which port of which other node, tried before any program starts.

A firewall between two nodes otherwise shows itself after the models are loaded, as a time-out of minutes deep
in NCCL or in the weight sync (ms-swift#7091).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from grpoflow.plan.placement import Placement

CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Link:
    """`client` connects to `port` of `server`; both are node indices."""

    server: int
    port: int
    client: int
    purpose: str


def links(placement: Placement, base: int) -> list[Link]:
    """All connections between nodes that the programs will open, for a port block at `base`."""
    found = []
    client = placement.sync_client_node
    for node, role in placement.rollout_servers:
        found += [
            Link(node, base + role.http_port_offset, client, f"requests to {role.name}"),
            Link(node, base + role.group_port_offset, client, f"weight sync with {role.name}"),
        ]
    master, port = placement.master_node, base + placement.master_port_offset
    found += [Link(master, port, node, "rendezvous of the trainer") for node, _ in placement.trainers]
    return [link for link in found if link.server != link.client]


class Listener:
    """Accepts connections on the ports of one node, until it is closed.

    The client closes first: the port would otherwise stay in TIME_WAIT here, and `swift rollout` would not
    take it.
    """

    def __init__(self, ports: Sequence[int]):
        self._sockets = [socket.create_server(("", port)) for port in ports]
        for listening in self._sockets:
            threading.Thread(target=self._serve, args=(listening,), daemon=True).start()

    def close(self) -> None:
        for listening in self._sockets:
            # close() alone does not wake a thread that waits in accept()
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    @staticmethod
    def _serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(CONNECT_SECONDS)
                with contextlib.suppress(OSError):
                    connection.recv(1)


def reach(host: str, port: int, deadline: float) -> str:
    """Try until `deadline` (monotonic) to connect; return the last error, or an empty text."""
    while True:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            return ""
        except OSError as error:
            if time.monotonic() > deadline:
                return str(error)
        time.sleep(0.2)
