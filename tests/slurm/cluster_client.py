"""What tests do with the test cluster: control it, submit jobs, and ask Slurm about them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CONTROL = Path(__file__).resolve().parents[2] / "scripts" / "test-cluster"


@dataclass(frozen=True)
class ClusterClient:
    """The cluster: nodes a800-0..3 with 8 GPUs each, partitions gpu (default), low, high; account train."""

    root: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment for everything that calls Slurm."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
        return kept | {"SLURM_CONF": str(self.root / "etc" / "slurm.conf")}

    def control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """scripts/test-cluster with these arguments; the exit status is the caller's to judge."""
        return subprocess.run(
            [CONTROL, *arguments], capture_output=True, text=True, timeout=300, check=False, env=self.env
        )

    def start(self, *flags: str) -> None:
        """Start whatever is not running, e.g. after stop() or kill_node()."""
        self.run(CONTROL, "start", *flags, seconds=300)

    def stop(self) -> None:
        self.run(CONTROL, "stop")

    def kill_node(self, index: int) -> None:
        """Lose a node with all its processes, at once."""
        self.run(CONTROL, "kill-node", str(index))

    def stop_node(self, index: int) -> None:
        """Stop a node's slurmd; its jobs go on."""
        self.run(CONTROL, "stop-node", str(index))

    def start_node(self, index: int) -> None:
        self.run(CONTROL, "start-node", str(index))

    def run(self, *argv: str | Path, cwd: Path | None = None, seconds: float = 60.0) -> str:
        """Run a program to its end and return its stdout; fails the test when it fails or takes too long."""
        done = subprocess.run(
            [str(word) for word in argv],
            cwd=cwd,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(self, script: str, *flags: str) -> str:
        """sbatch a shell script (500 MB, no output file, unless the flags say so) and return the job id."""
        defaults = ("--parsable", "--mem=500", "--output=/dev/null", "--chdir=/")
        return self.run("sbatch", *defaults, *flags, f"--wrap={script}").strip()

    def squeue(self, job: str, form: str = "%T") -> str:
        """What squeue says of the job now, by default its state; finished jobs are kept for 300 s."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={form}").strip()

    def wait_for(self, job: str, *states: str, seconds: float = 60.0) -> str:
        """Wait until the job is in one of the states and return it."""
        deadline = time.monotonic() + seconds
        while (state := self.squeue(job)) not in states:
            assert time.monotonic() < deadline, f"job {job} is {state} after {seconds:.0f} s, not {states}"
            time.sleep(0.1)
        return state

    def snakemake(
        self, directory: Path, *arguments: str | Path, seconds: float = 1200.0
    ) -> subprocess.CompletedProcess[str]:
        """`snakemake --profile slurm` in a directory; the exit status is the caller's to judge."""
        argv = [sys.executable, "-m", "snakemake", "--profile", "slurm", *arguments]
        return subprocess.run(
            argv,
            cwd=directory,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )

    def jobs_in(self, directory: Path, fields: str) -> list[dict[str, str]]:
        """What accounting has of the jobs that were submitted from a directory."""
        # by itself sacct begins at midnight, and a run may begin before
        out = self.run("sacct", "-XnP", "--starttime=now-1days", f"--format={fields},WorkDir%500")
        names = [field.partition("%")[0] for field in (*fields.split(","), "WorkDir")]
        jobs = [dict(zip(names, line.split("|"), strict=True)) for line in out.splitlines()]
        return [job for job in jobs if job["WorkDir"] == str(directory)]

    def sacct(self, job: str, fields: str = "State,Account,NodeList") -> list[dict[str, str]]:
        """All records of an ended job, oldest first (several after a requeue). Waits, as accounting lags."""
        names = fields.split(",")
        deadline = time.monotonic() + 30
        while True:
            out = self.run("sacct", "-XDnP", f"--jobs={job}", f"--format=End,{fields}")
            records = [line.split("|") for line in out.splitlines()]
            if records and all(end != "Unknown" for end, *_ in records):
                return [dict(zip(names, record, strict=True)) for _, *record in records]
            assert time.monotonic() < deadline, f"no ended record of job {job} in accounting, but {records}"
            time.sleep(0.2)
