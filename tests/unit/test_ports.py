"""Port blocks follow from the job id and are free."""

import socket

import pytest
from grpoflow.launch.ports import NoFreePorts, is_free, port_block


def test_jobs_next_to_each_other_get_other_blocks() -> None:
    first, second = port_block(100, 10, 20000), port_block(101, 10, 20000)
    assert abs(first - second) >= 10


def test_a_block_with_a_taken_port_is_passed_over() -> None:
    base = port_block(7, 10, 20000)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", base + 3))
        taken.listen()
        assert not is_free(base + 3)
        other = port_block(7, 10, 20000)
        assert not base <= other + 9 <= base + 18


def test_no_room_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 32767))
        taken.listen()
        with pytest.raises(NoFreePorts, match="32767"):
            port_block(1, 1, 32767)
