"""The process group of the trainer: one member per node, meeting at MASTER_ADDR:MASTER_PORT.

A member whose peer is gone waits for ever, as in a collective of NCCL.
"""

from __future__ import annotations

import os
import socket
import time


class Group:
    """One member of the group; member 0 listens."""

    def __init__(self) -> None:
        self.size = int(os.environ["NNODES"])
        self.rank = int(os.environ["NODE_RANK"])
        self.peers: list[socket.socket] = []
        if self.size == 1:
            return
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if self.rank:
            self.peers = [self._reach(address)]
            return
        with socket.create_server(("", address[1])) as listener:
            self.peers = [listener.accept()[0] for _ in range(self.size - 1)]

    @property
    def is_master(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def maximum(self, value: int) -> int:
        """All-reduce; also a barrier."""
        if self.rank:
            self._send(self.peers[0], value)
            return self._receive(self.peers[0])
        result = max([value, *(self._receive(peer) for peer in self.peers)])
        for peer in self.peers:
            self._send(peer, result)
        return result

    def _reach(self, address: tuple[str, int]) -> socket.socket:
        while True:
            try:
                return socket.create_connection(address)
            except OSError:
                time.sleep(0.05)

    def _send(self, peer: socket.socket, value: int) -> None:
        try:
            peer.sendall(value.to_bytes(8, "big"))
        except OSError:
            self._hang()

    def _receive(self, peer: socket.socket) -> int:
        content = b""
        while len(content) < 8:
            try:
                part = peer.recv(8 - len(content))
            except OSError:
                part = b""
            if not part:
                self._hang()
            content += part
        return int.from_bytes(content, "big")

    def _hang(self) -> None:
        while True:
            time.sleep(3600)
