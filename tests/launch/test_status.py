"""`grpoflow status` and `grpoflow cancel` on a run that the stand-in's programs do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpoflow.cli import main
from grpoflow.launch.driver import Driver
from grpoflow.launch.status import duration
from grpoflow.metrics import read_steps
from scene import Scene, launch


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory in which a job runs, without a driver."""
    path = tmp_path_factory.mktemp("status")
    slow = {"cluster": {"env": {"STANDIN_STEP": "0.4"}}, "trainer": {"train_steps": 200, "save_steps": 2}}
    run, found = launch(Scene(path), slow)
    with Driver(run, found, "local", {}, lambda _: None) as driver:
        job = driver.ensure_allocation()
    assert job is not None
    deadline = time.monotonic() + 30
    while len(read_steps(run.log)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield path
    job.cancel()


@pytest.fixture(autouse=True)
def _there(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)


def test_everything_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "main", "--format", "json"]) == 0
    (state,) = json.loads(capsys.readouterr().out)
    assert (state["experiment"], state["state"]) == ("main", "training")
    assert state["job"]["state"] == "running"
    assert state["attempt"] == f"{state['job']['id']}.0.0"
    assert [node["roles"] for node in state["nodes"]] == [["rollout0 (GPU 0)", "trainer0 (GPU 1)"]]
    assert 3 <= state["step"] < state["max_steps"] == 200
    assert state["checkpoint"] == f"checkpoint-{state['step'] // 2 * 2}"
    assert state["metrics"]["reward"] > 0
    # 64 completions of 9 tokens on average in a step of at least 0.4 s
    assert 0 < state["tokens_per_second"] <= 64 * 9 / 0.4
    assert state["seconds_to_end"] == pytest.approx((200 - state["step"]) * state["step_seconds"])


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    for word in (
        "main  run 0123456789ab",
        "(local): running",
        "training",
        "/200",
        "reward",
        "tokens/s",
        "logs",
    ):
        assert word in text


def test_an_unknown_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "nope"]) == 2
    assert "results/nope/runs" in capsys.readouterr().err
    assert main(["cancel", "nope"]) == 2


def test_cancel(capsys: pytest.CaptureFixture[str]) -> None:
    """As a person types it, from another process."""
    done = subprocess.run(
        [sys.executable, "-m", "grpoflow", "cancel"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("is cancelled\n")
    assert main(["status", "--format", "json"]) == 0
    (state,) = json.loads(capsys.readouterr().out)
    assert (state["job"]["state"], state["state"]) == ("gone", "cancelled")
    assert main(["cancel"]) == 0
    assert capsys.readouterr().out == "main: no job\n"


@pytest.mark.parametrize(("seconds", "text"), [(59, "0 min 59 s"), (3600, "1 h 0 min"), (200_000, "2 d 7 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
