"""The guard leaves nothing of a program behind, however it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from grpoflow.commands.base import Command
from grpoflow.launch.guard import descendants
from grpoflow.launch.process import Program, ProgramFailed, run, start, tail

# prints the ids of itself, of a child in another session and of a grandchild, which runs `{ignore}` first
FAMILY = """
import os, subprocess, sys, time
young = "import signal, time; {ignore}time.sleep(600)"
child = (
    "import subprocess, sys, time; "
    f"p = subprocess.Popen([sys.executable, '-c', {{young!r}}]); print(p.pid, flush=True); time.sleep(600)"
)
child = subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE)
grandchild = child.stdout.readline().decode().strip()
time.sleep(0.3)
print(os.getpid(), child.pid, grandchild, flush=True)
"""
OBEDIENT = FAMILY.format(ignore="")
STUBBORN = FAMILY.format(ignore="signal.signal(signal.SIGTERM, signal.SIG_IGN); ")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def family(tmp_path: Path, source: str) -> tuple[Program, list[int]]:
    log = tmp_path / "log"
    program = start("family", Command((sys.executable, "-c", source)), dict(os.environ), log)
    wait_for(lambda: log.read_text().count("\n") > 0)
    pids = [int(word) for word in log.read_text().split()]
    assert all(alive(pid) for pid in pids)
    return program, pids


def test_orphans_end_with_the_program(tmp_path: Path) -> None:
    program, pids = family(tmp_path, STUBBORN + "time.sleep(1); sys.exit(7)")
    wait_for(lambda: program.poll() is not None)
    assert program.poll() == 7
    assert not any(alive(pid) for pid in pids)


def test_stop_ends_everything(tmp_path: Path) -> None:
    program, pids = family(tmp_path, OBEDIENT + "time.sleep(600)")
    program.stop()
    assert not any(alive(pid) for pid in pids)
    program.stop()


def test_everything_ends_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import os, sys, time; from pathlib import Path\n"
        "from grpoflow.commands.base import Command; from grpoflow.launch.process import start\n"
        "command = Command((sys.executable, '-c', sys.argv[1]))\n"
        "start('family', command, dict(os.environ), Path(sys.argv[2])); time.sleep(600)"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program, OBEDIENT + "time.sleep(600)", str(log)])
    wait_for(lambda: log.is_file() and log.read_text().count("\n") > 0)
    below = descendants(supervisor.pid)
    supervisor.kill()
    supervisor.wait()
    wait_for(lambda: not any(alive(pid) for pid in below))


def test_a_failure_names_the_log_and_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    command = Command((sys.executable, "-c", "print('first'); raise SystemExit('the cause')"))
    with pytest.raises(ProgramFailed) as failure:
        run("x", command, dict(os.environ), log)
    assert failure.value.code == 1
    assert str(log) in str(failure.value)
    assert "the cause" in str(failure.value)


def test_a_signal_is_reported_as_such(tmp_path: Path) -> None:
    command = Command((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(ProgramFailed, match=f"signal {int(signal.SIGKILL)}"):
        run("x", command, dict(os.environ), tmp_path / "x.log")


def test_the_tail_of_a_progress_bar_is_its_last_state(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\n 10%\r 50%\r100%\n\nb\n")
    assert list(tail(log)) == ["a", "100%", "b"]
