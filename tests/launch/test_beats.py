"""A supervisor that is silent is noticed by the clock of the one that listens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from grpoflow.files import write_json
from grpoflow.launch import beats
from grpoflow.launch.beats import SILENT_SECONDS, Heartbeats
from grpoflow.launch.run import Attempt


def test_silence_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    for index in range(3):
        write_json(attempt.node(index), {"host": f"node{index}"})
        os.utime(attempt.node(index), (0, 0))  # its clock is wrong by decades
    clock = iter([0.0, 0.0, 60.0, 60.0, SILENT_SECONDS, SILENT_SECONDS, SILENT_SECONDS + 1])
    monkeypatch.setattr(beats.time, "monotonic", lambda: next(clock))
    first, second = Heartbeats(attempt, 0, 3), Heartbeats(attempt, 1, 3)
    for _ in range(3):
        assert first.beat() == second.beat() == ""
    assert first.beat() == "node2"


def test_nodes_that_have_not_joined_are_not_silent(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    write_json(attempt.node(0), {"host": "node0"})
    assert Heartbeats(attempt, 0, 2).beat() == ""
