"""Ports of one job: a block that follows from the job id, checked to be free."""

from __future__ import annotations

import socket

# Linux hands out ports from 32768 to any client: a block there can be taken between the check and the use
EPHEMERAL_FLOOR = 32768


class NoFreePorts(Exception):
    """No block of ports is free."""


def port_block(seed: int, size: int, first: int) -> int:
    """Find the base of a free block of `size` ports.

    Jobs that share a node start at different blocks (`seed` follows from the job id), and so do the attempts
    of a job; a block with a taken port is passed over.

    Raises:
        NoFreePorts: every block from `first` up to the ephemeral ports is taken.
    """
    blocks = max(1, (EPHEMERAL_FLOOR - first) // size)
    for offset in range(blocks):
        base = first + (seed + offset) % blocks * size
        if all(is_free(port) for port in range(base, base + size)):
            return base
    raise NoFreePorts(f"no {size} consecutive free ports between {first} and {EPHEMERAL_FLOOR}")


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now.

    Tried as `swift rollout` tries it, without SO_REUSEADDR (swift/utils/utils.py:299): it takes a port in
    TIME_WAIT, left by the server of the attempt before, for a taken one and moves to the next.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that is free now, for a program that runs alone: the kernel picks it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
