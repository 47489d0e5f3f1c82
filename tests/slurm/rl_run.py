"""An RL job under test on the cluster: its drivers, its processes, its files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drive
from cluster_client import ClusterClient
from grpoflow.checkpoints import newest_checkpoint
from grpoflow.files import read_json
from grpoflow.launch.leftovers import writers
from grpoflow.launch.processes import process_start
from grpoflow.launch.run import RunDirectory
from grpoflow.metrics import LogFollower, read_steps
from ranks import rank_of
from scene import Scene

DRIVE = Path(drive.__file__)


class RlRun:
    """One run of the stand-in, or in a subclass of the real programs, in a directory of its own."""

    real = False

    def __init__(self, cluster: ClusterClient, directory: Path, *overlays: dict[str, Any], **resources: Any):
        self.cluster, self.directory = cluster, directory
        directory.mkdir(parents=True, exist_ok=True)
        self.scene = Scene(directory, real=self.real)
        drive.prepare(directory, self.scene.dataset)
        self.raw = self.scene.raw(*overlays)
        self.config = self.scene.config(*overlays)
        defaults = {"launcher": "slurm", "mem_mb": 500, "runtime": 10, "cpus_per_task": 1}
        self.resources = defaults | resources
        self.drivers: list[subprocess.Popen[bytes]] = []

    # drivers

    def drive(self, stage: str = "train_grpo") -> Driver:
        """Start a driver."""
        log = self.directory / f"driver-{len(self.drivers)}.log"
        argv = [sys.executable, str(DRIVE), stage, json.dumps(self.raw), json.dumps(self.resources)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, cwd=self.directory, env=self.cluster.env, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.drivers.append(process)
        return Driver(process, log)

    def end(self) -> None:
        """End whatever is left of the run."""
        for driver in self.drivers:
            driver.kill()
            driver.wait()
        with contextlib.suppress(ValueError, OSError):
            subprocess.run(
                ["scancel", *self.run.jobs()], env=self.cluster.env, check=False, capture_output=True
            )
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    # files

    @property
    def run(self) -> RunDirectory:
        (path,) = (self.directory / "results/main/runs").glob("*")
        return RunDirectory(path)

    def allocation(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = read_json(self.run.allocation)
        except (OSError, ValueError):
            return {}
        return found

    def job(self) -> str:
        return str(read_json(self.run.job)["id"])

    def step(self) -> int:
        """The last logged step."""
        steps = read_steps(self.run.log) if list(self.directory.glob("results/main/runs/*")) else []
        return int(steps[-1]["step"]) if steps else 0

    def ends(self) -> list[dict[str, Any]]:
        """How the attempts ended, oldest first."""
        attempts = self.run.attempts(self.run.jobs())
        return [read_json(attempt.end) if attempt.end.is_file() else {} for attempt in attempts]

    def wait_for_step(self, step: int, seconds: float = 40.0) -> None:
        self._wait_driven(lambda: self.step() >= step, seconds)

    def wait_for_new_steps(self, count: int, seconds: float) -> None:
        """Wait until so many more steps are logged, repeated ones too."""
        begun = list(self.directory.glob("results/main/runs/*"))
        follower = LogFollower(self.run.log) if begun else None
        seen = 0

        def enough() -> bool:
            nonlocal seen, follower
            if follower is None and list(self.directory.glob("results/main/runs/*")):
                follower = LogFollower(self.run.log, from_start=True)
            seen += len(follower.read()) if follower else 0
            return seen >= count

        self._wait_driven(enough, seconds)

    def _wait_driven(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait for something that cannot come any more when the driver has ended."""

        def check() -> bool:
            if ready():
                return True
            assert self.drivers[-1].poll() is None, self._state()
            return False

        wait(check, seconds, self._state)

    def _state(self) -> str:
        said = (self.directory / f"driver-{len(self.drivers) - 1}.log").read_text(errors="replace")
        return f"at step {self.step()}: {self.allocation()}\n{said[-3000:]}"

    def check_complete(self, steps: int, interruptions: int = 0, save_steps: int | None = None) -> None:
        """All steps are done, the last checkpoint is complete, and of the work at most one save interval per
        interruption was done twice."""
        lines = [json.loads(line) for line in self.run.log.read_text().splitlines()]
        done = [int(line["iteration"].partition("/")[0]) for line in lines if "iteration" in line]
        assert sorted(set(done)) == list(range(1, steps + 1))
        interval = save_steps or self.config.trainer.save_steps
        assert len(done) - steps <= interruptions * interval
        newest = newest_checkpoint(self.run.output)
        assert newest is not None
        assert newest.step == steps

    def check_prompts(self) -> int:
        """Steps that were done again were done with the same prompts; return how many there were.

        Each attempt counts its rollouts from 0 (gen_step), and starts where its checkpoint was.
        """
        rollouts = [json.loads(line) for line in self.run.completions.read_text().splitlines()]
        resumed = [read_json(a.facts)["resume_step"] for a in self.run.attempts(self.run.jobs())]
        started = iter(resumed)
        of_step: dict[int, list[list[str]]] = {}
        for rollout in rollouts:
            if rollout["gen_step"][0] == 0:
                at = next(started)
            of_step.setdefault(at + rollout["gen_step"][0] + 1, []).append(sorted(rollout["prompt"]))
        assert all(one == prompts[0] for prompts in of_step.values() for one in prompts)
        assert len({tuple(prompts[0]) for prompts in of_step.values()}) > 1
        return sum(len(prompts) - 1 for prompts in of_step.values())

    # processes

    def processes(self, *words: str) -> list[int]:
        """The run's processes whose command line holds all the words."""
        found = []
        for pid in writers(map(str, self.directory.glob("logs/main/train_grpo/attempt-*"))):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if process_start(pid) and all(word in line for word in words):
                found.append(pid)
        return found

    def supervisors(self) -> list[int]:
        """The tasks of the job."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes().decode(errors="replace").split("\0")
                if "submitit.core._submit" in line and any(str(self.directory) in word for word in line):
                    found.append(int(path.parent.name))
        # the command of srun has the same words
        return [pid for pid in sorted(found) if "srun" not in Path(f"/proc/{pid}/comm").read_text()]

    def kill(self, *words: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the youngest program with these words in its command line."""
        os.kill(rank_of(self.processes(*words)), number)

    def start_now(self) -> None:
        """Do not wait for the hold of a requeued job."""
        wait(lambda: list(self.directory.glob("results/main/runs/*/attempts/*/left/0.json")), 60)
        job = self.job()
        wait(
            lambda: self.cluster.squeue(job, "%T %r").startswith("PENDING"),
            40,
            lambda: self.cluster.squeue(job),
        )
        self.cluster.run("scontrol", "update", f"jobid={job}", "StartTime=now")


class Driver:
    """A driver process and what it said."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path):
        self.process, self.log = process, log

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for its end and return its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver goes on after {seconds:.0f} s:\n{self.said}") from None

    def succeeds(self, seconds: float = 60.0) -> None:
        assert self.wait(seconds) == 0, self.said

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        wait(lambda: text in self.said, seconds, lambda: self.said)


def wait(ready: Callable[[], Any], seconds: float, explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)
