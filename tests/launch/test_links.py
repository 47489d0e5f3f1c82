"""Ports and connections of one job."""

from __future__ import annotations

import socket
import time

import pytest
from grpoflow.launch.links import Listener, links, reach
from grpoflow.launch.ports import free_port, is_free
from grpoflow.plan.placement import PlacementSpec, place


def test_every_connection_between_nodes_is_tried_and_no_other() -> None:
    placement = place(PlacementSpec("server", 8, trainer_nodes=2, rollout_nodes=2))
    found = links(placement, 20000)
    # the last trainer node talks to both servers, at two ports each; the other trainer meets the first one
    assert {(link.server, link.client) for link in found} == {(0, 3), (1, 3), (2, 3)}
    assert len({link.port for link in found}) == len(found) == 5


@pytest.mark.parametrize("spec", [PlacementSpec("colocate", 8), PlacementSpec("split", 8, trainer_gpus=(0,))])
def test_a_single_node_needs_none(spec: PlacementSpec) -> None:
    if spec.mode == "split":
        spec = PlacementSpec("split", 8, trainer_gpus=(0, 1, 2, 3), rollout_gpus=(4, 5, 6, 7))
    assert links(place(spec), 20000) == []


def test_a_listener_is_reached_and_leaves_its_ports_free() -> None:
    ports = [free_port(), free_port()]
    listener = Listener(ports)
    assert not any(map(is_free, ports))
    for port in ports * 3:
        assert reach("127.0.0.1", port, time.monotonic() + 5) == ""
    time.sleep(0.1)
    listener.close()
    deadline = time.monotonic() + 5
    while not all(map(is_free, ports)):
        assert time.monotonic() < deadline
    error = reach("127.0.0.1", ports[0], time.monotonic())
    assert "refused" in error


def test_a_port_in_time_wait_is_not_free() -> None:
    """`swift rollout` would move to the next one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = server.accept()
            connection.close()  # the side that closes first keeps the port in TIME_WAIT
            client.recv(1)
    assert not is_free(port)
