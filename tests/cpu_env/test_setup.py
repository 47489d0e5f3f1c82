"""scripts/setup with a python that only writes down what it is asked to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]

# `-m venv DIR` copies itself to DIR/bin/python; `-m pip` notes its arguments and sleeps $FAKE_SLEEP seconds
FAKE_PYTHON = """#!/bin/sh
case "$*" in
--version) echo "Python $FAKE_VERSION" ;;
*">= (3, 11)))") case $FAKE_VERSION in 3.[0-9].*) exit 1 ;; esac ;;
*"== (3, 11)))") case $FAKE_VERSION in 3.11.*) ;; *) exit 1 ;; esac ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo venv >>"$FAKE_LOG" ;;
"-m pip "*) echo "pip $*" >>"$FAKE_LOG"; sleep "${FAKE_SLEEP:-0}"; exit "${FAKE_PIP:-0}" ;;
*sysconfig*) echo "$(dirname "$0")" ;;
esac
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A directory with what scripts/setup reads, and a fake python3 in bin/."""
    root = tmp_path / "house"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(REPO / "scripts/setup", root / "scripts/setup")
    (root / "pyproject.toml").write_text("[project]\n")
    for name in ("orchestrator", "cpu"):
        (root / "envs" / name).mkdir(parents=True)
        (root / "envs" / name / "requirements.txt").write_text(
            "setuptools==1 \\\n    --hash=sha256:00\nzipp==2 \\\n    --hash=sha256:00\n"
        )
    (root / "bin").mkdir()
    python = root / "bin/python3"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return root


def start(house: Path, what: str, **env: str) -> subprocess.Popen[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GRPOFLOW")}
    return subprocess.Popen(
        [house / "scripts/setup", what],
        env=clean
        | {"PATH": f"{house}/bin:/usr/bin:/bin", "FAKE_LOG": str(house / "calls"), "FAKE_VERSION": "3.11.7"}
        | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(house: Path, what: str, **env: str) -> tuple[int, str]:
    process = start(house, what, **env)
    output, _ = process.communicate(timeout=30)
    return process.returncode, output


def calls(house: Path) -> list[str]:
    log = house / "calls"
    return log.read_text().splitlines() if log.exists() else []


def test_installs_setuptools_first_then_the_lock_then_the_package(house: Path) -> None:
    code, output = run(house, "orchestrator")
    assert code == 0, output
    venv, first, lock, editable = calls(house)
    assert venv == "venv"
    assert "--require-hashes" in first and first.endswith(".first.txt")
    assert "--no-build-isolation -r envs/orchestrator/requirements.txt" in lock and "--require-hashes" in lock
    assert "--editable ." in editable and "--no-deps" in editable
    assert (house / ".envs/orchestrator/.first.txt").read_text() == "setuptools==1 \\\n    --hash=sha256:00\n"
    assert "ready after" in output


def test_second_run_does_nothing(house: Path) -> None:
    run(house, "all")
    before = calls(house)
    code, output = run(house, "all")
    assert code == 0
    assert calls(house) == before
    assert output.count("up to date") == 2


@pytest.mark.parametrize("broken", ["orchestrator", "cpu"])
def test_all_fails_with_either(house: Path, broken: str) -> None:
    """Both are made side by side."""
    (house / ".envs").mkdir()
    (house / f".envs/{broken}").symlink_to(house / "somebody-elses")
    code, output = run(house, "all")
    assert code == 1, output
    assert f".envs/{broken} is a link" in output


def test_changed_lock_makes_only_its_environment_anew(house: Path) -> None:
    run(house, "all")
    (house / "calls").unlink()
    with (house / "envs/cpu/requirements.txt").open("a") as lock:
        lock.write("new==1 \\\n    --hash=sha256:00\n")
    leftover = house / ".envs/cpu/left-over-of-the-old-one"
    leftover.touch()
    code, output = run(house, "all")
    assert code == 0, output
    assert "orchestrator: up to date" in output
    assert calls(house).count("venv") == 1
    assert not leftover.exists()


def test_an_activated_environment_is_made_anew_with_another_python(house: Path) -> None:
    run(house, "orchestrator")
    own = house / ".envs/orchestrator/bin"
    shutil.copy(own / "python", own / "python3")
    with (house / "envs/orchestrator/requirements.txt").open("a") as lock:
        lock.write("new==1 \\\n    --hash=sha256:00\n")
    code, output = run(house, "orchestrator", PATH=f"{own}:{house}/bin:/usr/bin:/bin")
    assert code == 0, output
    assert f"making {house}/.envs/orchestrator with {house}/bin/python3" in output


def test_killed_at_work_is_built_anew(house: Path) -> None:
    process = start(house, "orchestrator", FAKE_SLEEP="20")
    deadline = time.monotonic() + 10
    while not any(call.startswith("pip") for call in calls(house)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (house / ".envs/orchestrator/.complete").exists()
    half = house / ".envs/orchestrator/half-unpacked"
    half.touch()
    code, output = run(house, "orchestrator")
    assert code == 0, output
    assert not half.exists()
    assert (house / ".envs/orchestrator/.complete").exists()


def test_two_runs_do_not_collide(house: Path) -> None:
    first = start(house, "orchestrator", FAKE_SLEEP="1")
    second = start(house, "orchestrator", FAKE_SLEEP="1")
    outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert calls(house).count("venv") == 1
    assert sum("waiting for it" in output for output in outputs) == 1
    assert sum("up to date" in output for output in outputs) == 1


def test_failed_pip_leaves_no_stamp(house: Path) -> None:
    code, output = run(house, "orchestrator", FAKE_PIP="1")
    assert code == 1
    assert "pip failed; see the end of" in output
    assert not (house / ".envs/orchestrator/.complete").exists()


@pytest.mark.parametrize(
    ("what", "version", "words"),
    [
        ("orchestrator", "3.9.2", "no python 3.11 or newer on PATH"),
        ("cpu", "3.12.1", "no python 3.11 (the CPU"),
    ],
)
def test_python_that_does_not_fit(house: Path, what: str, version: str, words: str) -> None:
    # only the fake python on PATH: the machine's own would fit
    for tool in ("bash", "env", "dirname", "mkdir", "flock", "cat", "uname"):
        (house / "bin" / tool).symlink_to(str(shutil.which(tool)))
    code, output = run(house, what, FAKE_VERSION=version, PATH=str(house / "bin"))
    assert code == 1
    assert words in output and version in output


def test_somebody_elses_environment_is_left_alone(house: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (house / ".envs").mkdir()
    (house / ".envs/cpu").symlink_to(theirs)
    code, output = run(house, "cpu")
    assert code == 1
    assert "is a link" in output
    assert (house / ".envs/cpu").readlink() == theirs


def test_other_place(house: Path, tmp_path: Path) -> None:
    code, output = run(house, "orchestrator", GRPOFLOW_ENVS=str(tmp_path / "elsewhere"))
    assert code == 0, output
    assert (tmp_path / "elsewhere/orchestrator/.complete").exists()
    assert not (house / ".envs").exists()


def test_unknown_environment(house: Path) -> None:
    code, output = run(house, "gpu")
    assert code == 1
    assert "use orchestrator, cpu or all" in output
