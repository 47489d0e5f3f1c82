"""A real training that dies on the way and goes on: its curve continues, it does not begin again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from math import sqrt
from statistics import mean, variance
from typing import Any

import pytest
from ranks import rank_of
from workspace import BIN, Workspace, left_processes, processes_of

pytestmark = pytest.mark.real

STEPS, SAVE, KILL_AT, WINDOW = 90, 10, 65, 10
SECONDS = 400


def records(workspace: Workspace) -> list[dict[str, Any]]:
    """The logged steps in the order in which they were made, repeated ones too."""
    found = list(workspace.path.glob("results/resumed/runs/*/output/logging.jsonl"))
    lines = found[0].read_text().splitlines() if found else []
    steps = [json.loads(line) for line in lines if line.endswith("}")]
    return [step | {"step": int(step["iteration"].partition("/")[0])} for step in steps if "reward" in step]


def kill_the_trainer(workspace: Workspace) -> None:
    ranks = [
        number
        for number, command in processes_of(workspace.path).items()
        if "swift/cli/_megatron/rlhf.py" in command
    ]
    os.kill(rank_of(ranks), signal.SIGKILL)


def test_the_curve_continues(default_run: tuple[Workspace, str]) -> None:
    """The sampler of vLLM cannot be restored, so the steps that are made twice have other completions."""
    workspace, _ = default_run
    trainer = f"{{train_steps: {STEPS}, save_steps: {SAVE}}}"
    overlay = workspace.write("resumed.yaml", f"experiments: {{resumed: {{trainer: {trainer}}}}}\n")
    argv = [
        *(BIN / "snakemake", "--profile", "profiles/local", "--until", "train_grpo"),
        *("--configfile", "config/config.yaml", overlay),
    ]
    log = workspace.path / "resumed.log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=workspace.path, stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + SECONDS
    while not (made := records(workspace)) or made[-1]["step"] < KILL_AT:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-6000:]
        time.sleep(0.2)
    kill_the_trainer(workspace)
    assert process.wait(SECONDS) == 0, log.read_text()[-6000:]
    assert left_processes(workspace.path) == {}

    made = records(workspace)
    steps = [record["step"] for record in made]
    assert steps[-1] == STEPS
    (again,) = [n for n in range(1, len(steps)) if steps[n] <= steps[n - 1]]
    assert steps[again] == KILL_AT // SAVE * SAVE + 1
    rewards = [float(record["reward"]) for record in made]
    begin, before, after = rewards[:WINDOW], rewards[again - WINDOW : again], rewards[again : again + WINDOW]
    noise = sqrt((variance(before) + variance(after)) / WINDOW)
    assert abs(mean(after) - mean(before)) <= 3 * noise
    # it had learned, and has not forgotten it
    assert mean(before) - mean(begin) > 2 * noise
    assert mean(after) - mean(begin) > (mean(before) - mean(begin)) / 2
    rates = {record["step"]: [] for record in made}
    for record in made:
        rates[record["step"]].append(record["learning_rate"])
    assert all(len(set(found)) == 1 for found in rates.values())
