"""Starting external programs under the guard, with their output in a log file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpoflow.commands.base import Command

TAIL_LINES = 20
TAIL_BYTES = 200_000
POLL_SECONDS = 0.2
STOP_SECONDS = 25.0


@dataclass
class Program:
    """A running program: its guard process and its log."""

    name: str
    guard: subprocess.Popen[bytes]
    log: Path

    def poll(self) -> int | None:
        return self.guard.poll()

    def tell(self) -> None:
        """Tell the program to end, without waiting for it."""
        if self.guard.poll() is None:
            self.guard.terminate()

    def stop(self) -> None:
        """End the program and everything below it. May be called again, and after its end."""
        if self.guard.poll() is None:
            self.guard.terminate()
            try:
                self.guard.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.guard.kill()
                self.guard.wait()


def start(name: str, command: Command, base: Mapping[str, str], log: Path) -> Program:
    """Start a program in a session of its own, so that a Ctrl-C reaches its supervisor only."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # the guard is isolated (-I) from whatever PYTHONPATH the program needs
    guard = Path(__file__).with_name("guard.py")
    argv = [sys.executable, "-I", str(guard), str(os.getpid()), "--", *command.argv]
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**base, **command.env},
            start_new_session=True,
        )
    return Program(name, process, log)


def run(
    name: str,
    command: Command,
    base: Mapping[str, str],
    log: Path,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run a program to its end, calling `watch` meanwhile.

    Raises:
        ProgramFailed: it ended with another code than 0.
    """
    program = start(name, command, base, log)
    try:
        while (code := program.poll()) is None:
            watch()
            time.sleep(POLL_SECONDS)
    finally:
        program.stop()
    if code != 0:
        raise ProgramFailed(name, code, log)


class ProgramFailed(Exception):
    """A program ended with an error. The message holds its log's path and last lines."""

    def __init__(self, name: str, code: int, log: Path):
        self.name, self.code, self.log = name, code, log
        super().__init__(f"{name} {how_it_ended(code)}\n{log_excerpt(log)}")


def how_it_ended(code: int) -> str:
    """An exit code of the guard in words.

    A program that was killed gives 128 + N for signal N; `swift`, whose child was killed, gives 256 - N
    (swift/cli/main.py passes a negative number to sys.exit). 255 is more often a sys.exit(-1).
    """
    if code == 255:
        return f"ended with exit code {code} (sys.exit(-1), or a child that was killed by SIGHUP)"
    number = code - 128 if 128 < code <= 192 else 256 - code if code > 192 else 0
    if not number:
        return f"ended with exit code {code}"
    try:
        return f"was killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"ended with exit code {code}"


def log_excerpt(log: Path) -> str:
    """The path and the last lines of a log, for a failure message."""
    lines = tail(log)
    return "\n".join([f"log: {log}", *(f"  | {line}" for line in lines)])


def tail(log: Path, lines: int = TAIL_LINES) -> Sequence[str]:
    """The last non-empty lines of a log. Progress bars (carriage returns) count as one line."""
    if not log.is_file():
        return ["(no output)"]
    kept = [line.rpartition("\r")[2].rstrip() for line in tail_text(log).split("\n")]
    return [line for line in kept if line][-lines:]


def tail_text(log: Path) -> str:
    """The end of a log as it is; empty when there is none."""
    try:
        with log.open("rb") as content:
            content.seek(0, os.SEEK_END)
            content.seek(max(0, content.tell() - TAIL_BYTES))
            return content.read().decode("utf-8", "replace")
    except OSError:
        return ""
