"""Watching a training from its log, with a clock that the tests move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grpoflow.launch.space import missing_space, next_save, size_of
from grpoflow.launch.watch import Progress


def log(path: Path, step: int) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"loss": 0.1, "iteration": f"{step}/100"}) + "\n")


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    path = tmp_path / "logging.jsonl"
    log(path, 50)  # of a former attempt
    return Progress(path, stall_timeout=100, startup=1000, started=0)


def test_old_lines_are_no_progress(progress: Progress) -> None:
    assert not progress.observe(1)
    log(progress.log, 51)
    assert progress.observe(2)
    assert (progress.step, progress.max_steps) == (51, 100)
    assert not progress.observe(3)


def test_until_the_first_step_there_is_time_to_load(progress: Progress) -> None:
    assert not progress.is_stalled(1099)
    assert progress.is_stalled(1101)
    log(progress.log, 51)
    progress.observe(1000)
    assert not progress.is_stalled(1099)
    assert progress.is_stalled(1101)


def test_slow_steps_widen_the_bound(progress: Progress) -> None:
    for number, when in enumerate((500, 560, 580), start=51):
        log(progress.log, number)
        progress.observe(when)
    assert progress.bound == 600  # ten times the 60 s between the first two
    assert not progress.is_stalled(1179)
    assert progress.is_stalled(1181)
    assert progress.is_suspicious(580 + 181)
    assert not progress.is_suspicious(580 + 179)


def test_a_line_that_is_being_written_waits(progress: Progress) -> None:
    with progress.log.open("a") as file:
        file.write('{"loss": 0.1, "itera')
        file.flush()
        assert not progress.observe(1)
        file.write('tion": "51/100"}\n')
        file.flush()
        assert progress.observe(2)


@pytest.mark.parametrize(("step", "expected"), [(0, 4), (3, 4), (4, 8), (9, 10), (10, 10)])
def test_saves_are_at_multiples_and_at_the_end(step: int, expected: int) -> None:
    assert next_save(step, save_steps=4, max_steps=10) == expected


def test_what_was_moved_aside_gives_way(tmp_path: Path) -> None:
    aside = tmp_path / "incomplete-checkpoint-8-0123"
    aside.mkdir()
    (aside / "shard").write_bytes(bytes(1000))
    assert size_of(tmp_path) == 1000
    assert missing_space(tmp_path, 1000) == 0
    assert aside.exists()
    assert missing_space(tmp_path, 2**60) > 0
    assert not aside.exists()
