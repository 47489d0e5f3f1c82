"""When the training callback stops: the last rollout and save must end before the job does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grpoflow.training_env.walltime import Deadline


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path / "deadline.json"


def tell(path: Path, end: float | None, margin: float = 0.0) -> None:
    path.write_text(json.dumps({"end": end, "margin": margin}))


def steps(deadline: Deadline, *times: float) -> list[bool]:
    return [deadline.is_near(number, now) for number, now in enumerate(times, start=1)]


def test_it_stops_when_another_step_would_end_too_late(told: Path) -> None:
    tell(told, 100)
    assert steps(Deadline(told, None), 0, 30, 60, 80) == [False, False, False, True]


def test_the_first_step_counts_only_while_it_is_the_only_one(told: Path) -> None:
    """It compiles and tunes kernels."""
    tell(told, 1000)
    deadline = Deadline(told, None)
    assert steps(deadline, 0, 600) == [False, True]
    assert not deadline.is_near(3, 630)


def test_the_save_is_added_and_is_no_step(told: Path) -> None:
    tell(told, 130 + 10 + 150)
    deadline = Deadline(told, None)
    steps(deadline, 0, 10, 20)
    deadline.saved(120)  # 100 s, and half as much again as a reserve
    assert not deadline.is_near(4, 130)
    assert deadline.step_seconds[-1] == 10
    assert deadline.is_near(5, 131)


def test_the_margin_is_the_least(told: Path) -> None:
    tell(told, 302, margin=300)
    assert steps(Deadline(told, None), 0, 1, 2, 3) == [False, False, False, True]


def test_it_stops_between_rollouts_only(told: Path) -> None:
    tell(told, 10)
    assert steps(Deadline(told, None, steps_per_rollout=4), *range(20, 25)) == [False] * 3 + [True, False]


def test_the_end_can_change_and_can_be_absent(told: Path) -> None:
    deadline = Deadline(told, None)
    assert not deadline.is_near(1, 50)
    tell(told, None)
    assert not deadline.is_near(2, 51)
    tell(told, 52)
    assert deadline.is_near(3, 52)
    told.write_text('{"end"')
    assert not deadline.is_near(4, 60)
    assert not Deadline(None, None).is_near(1, 60)


def test_what_was_done_is_told(tmp_path: Path) -> None:
    Deadline(None, tmp_path / "stopped.json").tell(7)
    assert json.loads((tmp_path / "stopped.json").read_text()) == {"step": 7}
