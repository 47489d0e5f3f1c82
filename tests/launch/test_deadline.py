"""The file that tells the training when its job ends."""

from __future__ import annotations

import errno
import math
import time
from pathlib import Path
from typing import Any

import pytest
from grpoflow.files import read_json
from grpoflow.launch import deadline, slurm
from grpoflow.launch.deadline import DeadlineKeeper


def running_until(end: float) -> slurm.JobFacts:
    return slurm.JobFacts("RUNNING", "", 0, 0, end, 600, is_preempted=False)


def test_a_disk_that_is_full_for_a_moment_hides_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread would be dead, and the training go on until Slurm kills it."""
    end, write, calls = time.time() + 600, deadline.write_json, []

    def full_at_first(path: Path, value: Any) -> None:
        calls.append(value)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, value)

    monkeypatch.setattr(deadline, "ASK_SECONDS", 0.02)
    monkeypatch.setattr(deadline, "write_json", full_at_first)
    monkeypatch.setattr(slurm, "job_facts", lambda *_: running_until(end))
    keeper = DeadlineKeeper(tmp_path / "deadline.json", "1", 300)
    keeper.start()
    until = time.monotonic() + 10
    while read_json(tmp_path / "deadline.json")["end"] != end:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert 590 < keeper.remaining() < 600
    keeper.stop_now()
    assert read_json(tmp_path / "deadline.json")["end"] <= time.time()
    time.sleep(0.1)
    assert read_json(tmp_path / "deadline.json")["end"] < end


def test_without_slurm_there_is_no_end(tmp_path: Path) -> None:
    keeper = DeadlineKeeper(tmp_path / "deadline.json", None, 300)
    keeper.start()
    assert read_json(tmp_path / "deadline.json") == {"end": None, "margin": 300}
    assert keeper.remaining() == math.inf
