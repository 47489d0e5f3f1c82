"""The drivers' lock: one owner at a time, taken over when the owner is dead or silent."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from grpoflow.files import read_json, write_json
from grpoflow.launch.lock import STALE, DriverLock


def test_the_first_one_has_it_until_it_gives_it_back(tmp_path: Path) -> None:
    first, second = DriverLock(tmp_path / "lock"), DriverLock(tmp_path / "lock")
    assert first.take()
    assert first.take()
    assert not second.take()
    assert str(os.getpid()) in second.owner
    second.release()
    assert first.beat()
    first.release()
    assert second.take()
    assert not first.beat()


def owned_by(path: Path, **changes: object) -> None:
    """A lock whose owner is another process."""
    DriverLock(path).take()
    write_json(path, read_json(path) | {"token": "other"} | changes)


def test_a_dead_process_of_this_machine_loses_it_at_once(tmp_path: Path) -> None:
    owned_by(tmp_path / "lock", pid=2**22 + 1)
    assert DriverLock(tmp_path / "lock").take()


def test_a_reused_process_number_is_not_the_owner(tmp_path: Path) -> None:
    owned_by(tmp_path / "lock", pid=os.getpid(), started="0")
    assert DriverLock(tmp_path / "lock").take()


def test_another_machine_loses_it_when_it_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    owned_by(path, pid=2**22 + 1, host="elsewhere")
    assert not DriverLock(path).take()
    age = path.stat().st_mtime - STALE - 1
    os.utime(path, (age, age))
    assert DriverLock(path).take()


def test_an_owner_that_beats_is_not_silent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    owner = DriverLock(path)
    owner.take()
    age = path.stat().st_mtime - STALE - 1
    os.utime(path, (age, age))
    assert owner.beat()
    write_json(path, read_json(path) | {"host": "elsewhere"})
    assert not DriverLock(path).take()


@pytest.mark.parametrize("_", range(20))
def test_of_many_only_one_takes_the_place_of_a_dead_owner(tmp_path: Path, _: int) -> None:
    owned_by(tmp_path / "lock", pid=2**22 + 1)
    locks = [DriverLock(tmp_path / "lock") for _ in range(8)]
    start = threading.Barrier(len(locks))
    taken = []

    def take(lock: DriverLock) -> None:
        start.wait()
        if lock.take():
            taken.append(lock)

    threads = [threading.Thread(target=take, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([lock for lock in taken if lock.is_mine()]) == 1
    assert len(taken) == 1


@pytest.mark.parametrize("torn", ["", '{"token": '])
def test_a_torn_lock_is_nobodys_when_it_is_old(tmp_path: Path, torn: str) -> None:
    """A machine that lost its power left it: without an owner no one would ever release it."""
    path = tmp_path / "lock"
    path.write_text(torn)
    assert not DriverLock(path).take()  # perhaps it is being written
    age = path.stat().st_mtime - STALE - 1
    os.utime(path, (age, age))
    first, second = DriverLock(path), DriverLock(path)
    assert first.take()
    assert not second.take()
