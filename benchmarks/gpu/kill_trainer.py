"""Kill a trainer in the middle of a run: `python kill_trainer.py RESULTS/EXPERIMENT STEP KILLED.json`.

Waits until the run has logged STEP steps and has a checkpoint, then kills one rank with SIGKILL, as the
kernel's out-of-memory killer would. Writes what was killed, and when.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def rank_of(output: Path) -> int | None:
    """The process id of a training rank that writes to `output`: torchrun gives ranks a LOCAL_RANK."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = str(output).encode() in words and b"--rlhf_type" in words
        if ours and any(variable.startswith(b"LOCAL_RANK=") for variable in environment):
            return int(process.name)
    return None


def steps(log: Path) -> int:
    if not log.is_file():
        return 0
    return sum('"reward"' in line for line in log.read_text(errors="replace").splitlines())


def main(experiment: Path, step: int, report: Path) -> None:
    while True:
        time.sleep(0.2)
        for output in experiment.glob("runs/*/output"):
            reached = steps(output / "logging.jsonl")
            if reached < step or not (output / "last-checkpoint").exists():
                continue
            pid = rank_of(output.absolute())
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                facts = {"step": reached, "pid": pid, "time": time.time(), "output": str(output)}
                report.write_text(json.dumps(facts) + "\n")
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
