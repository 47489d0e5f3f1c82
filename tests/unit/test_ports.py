"""Port blocks follow from the job id and are free.

Which ports are taken is told to `port_block` here: other jobs and the tests beside this one take real ones.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from grpoflow.launch import ports
from grpoflow.launch.ports import NoFreePorts, free_port, is_free, port_block

Take = Callable[..., None]


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Take:
    """Make exactly these ports taken, none before the first call."""
    taken: set[int] = set()
    monkeypatch.setattr(ports, "is_free", lambda port: port not in taken)

    def take(*more: int) -> None:
        taken.update(more)

    return take


@pytest.mark.usefixtures("take")
def test_jobs_next_to_each_other_get_blocks_next_to_each_other() -> None:
    assert [port_block(seed, 3, 20000) for seed in (160, 161, 162)] == [20480, 20483, 20486]


@pytest.mark.usefixtures("take")
def test_a_job_id_of_any_size_gets_a_block_below_the_ephemeral_ports() -> None:
    bases = {port_block(seed, 3, 32758) for seed in range(4_000_000, 4_000_009)}
    assert bases == {32758, 32761, 32764}


@pytest.mark.parametrize("port", [20480, 20481, 20482])
def test_a_block_with_a_taken_port_is_passed_over(take: Take, port: int) -> None:
    take(port)
    assert port_block(160, 3, 20000) == 20483


def test_after_the_last_block_comes_the_first(take: Take) -> None:
    take(32765)
    assert port_block(2, 3, 32758) == 32758


def test_no_room_is_said(take: Take) -> None:
    take(32759, 32761, 32766)
    with pytest.raises(NoFreePorts, match="3 consecutive free ports between 32758 and 32768"):
        port_block(1, 3, 32758)


def test_a_port_that_a_server_listens_on_is_not_free() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert any(is_free(free_port()) for _ in range(3))
