"""The guard leaves no process behind, however the program and its children end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from grpoflow.commands.base import Command
from grpoflow.launch import guard
from grpoflow.launch.guard import descendants
from grpoflow.launch.process import Program, ProgramFailed, run, start
from grpoflow.launch.processes import process_start

# a chain of processes, each deaf to SIGTERM and in a session of its own
DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
depth = int(sys.argv[1])
if depth:
    subprocess.Popen([sys.executable, "-c", os.environ["DEAF"], str(depth - 1)], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def chain(tmp_path: Path, depth: int = 3) -> tuple[Program, list[int]]:
    argv = (sys.executable, "-c", DEAF, str(depth))
    program = start("deaf", Command(argv, {"DEAF": DEAF}), os.environ, tmp_path / "deaf.log")
    deadline = time.monotonic() + 20
    while program.log.read_text().count("ready") <= depth:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return program, descendants(program.guard.pid)


def test_a_chain_of_deaf_processes_is_killed(tmp_path: Path) -> None:
    program, pids = chain(tmp_path)
    assert len(pids) == 4
    os.kill(pids[1], signal.SIGKILL)  # its children are the guard's now
    program.stop()
    assert not any(map(process_start, pids))
    assert program.poll() == 128 + signal.SIGTERM


def test_the_death_of_the_supervisor_ends_everything(tmp_path: Path) -> None:
    """The guard is told by the kernel."""
    code = f"""
import os, sys, time
from pathlib import Path
from grpoflow.commands.base import Command
from grpoflow.launch.process import start
program = start("x", Command(("sleep", "601"), {{}}), os.environ, Path({str(tmp_path / "x.log")!r}))
print(program.guard.pid, flush=True)
time.sleep(600)
"""
    supervisor = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    pid = int(supervisor.stdout.readline())
    deadline = time.monotonic() + 20
    while not (below := descendants(pid)):
        assert time.monotonic() < deadline
    supervisor.kill()
    supervisor.wait()
    while any(map(process_start, [pid, *below])):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_unlucky_look_at_proc_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child whose parent dies while /proc is read is seen under neither."""
    looks = iter([[1], [], [2], [], [], []])
    told: list[int] = []
    monkeypatch.setattr(guard, "descendants", lambda _: next(looks))
    monkeypatch.setattr(guard, "POLL_SECONDS", 0)
    monkeypatch.setattr(os, "kill", lambda pid, _: told.append(pid))
    guard.end_descendants()
    assert told == [1, 2]


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("exit 3", "ended with exit code 3"),
        ("kill -9 $$", r"was killed by signal 9 \(SIGKILL\)"),
        ("exit 247", r"was killed by signal 9 \(SIGKILL\)"),  # what swift says of its child
        ("exit 255", r"ended with exit code 255 \(sys.exit\(-1\), or .* SIGHUP\)"),
    ],
)
def test_how_a_program_ended(tmp_path: Path, line: str, how: str) -> None:
    with pytest.raises(ProgramFailed, match=f"(?s)sh {how}.*last words"):
        run("sh", Command(("sh", "-c", f"echo last words; {line}"), {}), os.environ, tmp_path / "sh.log")


def test_orphans_are_reaped_while_the_program_runs() -> None:
    """A reward function that starts background shells for days would use up the processes of the node."""
    orphans = "for i in 1 2 3 4 5 6 7 8; do (true &) ; done; sleep 1; echo started; sleep 30"
    argv = [sys.executable, "-I", guard.__file__, str(os.getpid()), "--", "sh", "-c", orphans]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(2 * guard.POLL_SECONDS)
        below = [
            stat.rpartition(")")[2].split()[:2]
            for path in Path("/proc").glob("[0-9]*/stat")
            if (stat := _content(path))
        ]
        zombies = [parent for state, parent in below if state == "Z" and parent == str(process.pid)]
        process.send_signal(signal.SIGTERM)
    assert zombies == []
    assert process.returncode == 128 + signal.SIGTERM


def _content(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
