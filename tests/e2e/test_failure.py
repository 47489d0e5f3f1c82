"""Stages of the real stack that are interrupted or killed: what is left, what is said, what is done again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace import BIN, Workspace, left_processes, make_workspace, processes_of

pytestmark = pytest.mark.real

OVERLAY = "sft: {train_steps: 12}\n"
TARGET = ("--configfile", "config/config.yaml", "short.yaml", "--until", "sft")
SECONDS = 240


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Everything before the SFT stage is done."""
    workspace = make_workspace(tmp_path_factory.mktemp("failure"))
    workspace.write("short.yaml", OVERLAY)
    workspace.snakemake(*TARGET[:3], "--until", "cache_sft")
    return workspace


def disturbed(workspace: Workspace, disturb: Callable[[subprocess.Popen[bytes]], None]) -> tuple[int, str]:
    """Run Snakemake, disturb it once the training has made steps; return exit code and what was printed."""
    log = workspace.path / "printed.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BIN / "snakemake", "--profile", "profiles/local", *TARGET],
            cwd=workspace.path,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + SECONDS
    while "step " not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"the training did not start\n{log.read_text()[-6000:]}")
        time.sleep(0.2)
    disturb(process)
    return process.wait(SECONDS), log.read_text()


def results(workspace: Workspace) -> list[Path]:
    """What lies in the place of the results of SFT, hidden attempts too."""
    return list((workspace.path / "results/shared/sft").glob("*"))


def test_interrupted(workspace: Workspace) -> None:
    """Ctrl-C reaches the whole process group of the terminal."""
    code, _ = disturbed(workspace, lambda process: os.killpg(process.pid, signal.SIGINT))
    assert code != 0
    assert left_processes(workspace.path) == {}
    assert not any(result.name.startswith(".") or list(result.iterdir()) for result in results(workspace))


def test_killed_program_is_named(workspace: Workspace) -> None:
    def kill_trainer(_: subprocess.Popen[bytes]) -> None:
        for number, command in processes_of(workspace.path).items():
            if "swift/cli/sft.py" in command:
                os.kill(number, signal.SIGKILL)

    code, printed = disturbed(workspace, kill_trainer)
    assert code != 0
    (message,) = {line for line in printed.splitlines() if line.startswith("stage sft of ")}
    assert "SIGKILL" in message
    assert "logs/" in printed.partition(message)[2] or "logs/" in message
    assert left_processes(workspace.path) == {}
    assert not any(result.name.startswith(".") or list(result.iterdir()) for result in results(workspace))


def test_goes_on_with_what_failed(workspace: Workspace) -> None:
    assert workspace.planned(*TARGET) == {"sft"}
    workspace.snakemake(*TARGET)
    (result,) = results(workspace)
    assert (result / "model/model.safetensors").is_file()
