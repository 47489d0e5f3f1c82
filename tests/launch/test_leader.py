"""A stage notices that its Snakemake has ended, and only that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from grpoflow.launch.leader import VARIABLE, Leader

STAGE = "from grpoflow.launch.leader import Leader; print(Leader.of_this_stage().is_alive())"
SNAKEMAKE = f"""
import os, subprocess, sys, time
from grpoflow.launch.interrupt import lead_stages
lead_stages()
print(os.environ[{VARIABLE!r}], flush=True)
sys.stdin.read()
subprocess.run([sys.executable, "-c", {STAGE!r}])
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_a_stage_that_starts_when_snakemake_is_gone_already_notices() -> None:
    """Its parent is another process by then: looking at the parents would show nothing amiss."""
    with subprocess.Popen(
        [sys.executable, "-c", SNAKEMAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as snakemake:
        assert snakemake.stdout is not None
        env = os.environ | {VARIABLE: snakemake.stdout.readline().strip()}
        snakemake.kill()
    stage = subprocess.run([sys.executable, "-c", STAGE], env=env, capture_output=True, text=True, check=True)
    assert stage.stdout == "False\n"


def test_the_end_of_the_shell_above_snakemake_is_not_its_end() -> None:
    """`nohup snakemake &` and a logout: the shell ends first, the stage is started afterwards."""
    script = 'exec 3<&0; "$0" -c "$1" <&3 & exit'
    with subprocess.Popen(
        ["sh", "-c", script, sys.executable, SNAKEMAKE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.wait(20) == 0
        said, _ = shell.communicate()  # closes its input, on which the stage starts
    assert said.splitlines()[1:] == ["True"]


def test_another_process_with_the_number_of_snakemake_is_not_it() -> None:
    assert not Leader(os.getpid(), "0").is_alive()


def test_a_stage_without_snakemake_runs_to_its_end() -> None:
    assert Leader.of_this_stage() == Leader()
    assert Leader().is_alive()
