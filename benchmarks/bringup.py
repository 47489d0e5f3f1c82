"""Time from the start of the RL job to its first step, parallel and sequential; cost of supervision.

    .envs/orchestrator/bin/python benchmarks/bringup.py [--real] [--steps 40] [--json FILE]

Parallel is what the launcher does: a job on this machine whose roles start at once. Sequential starts the
trainer when the server is ready, as a script would, with ms-swift connecting as it does by itself.
`--real` runs the real programs of .envs/cpu on the tiny model, else the stand-in with made-up loading times.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/standin"))

from grpoflow.commands.base import Command  # noqa: E402
from grpoflow.commands.distributed import Ranks  # noqa: E402
from grpoflow.commands.environment import clean_environment  # noqa: E402
from grpoflow.commands.rollout import rollout  # noqa: E402
from grpoflow.commands.train import Server, TrainPaths, train  # noqa: E402
from grpoflow.config.tuner import Parallel  # noqa: E402
from grpoflow.launch.driver import Driver  # noqa: E402
from grpoflow.launch.health import is_healthy  # noqa: E402
from grpoflow.launch.ports import free_port  # noqa: E402
from grpoflow.launch.process import start  # noqa: E402
from grpoflow.launch.run import Launch, RunDirectory  # noqa: E402
from grpoflow.metrics import read_steps  # noqa: E402
from scene import Scene, launch  # noqa: E402

SMALL = {"trainer": {"global_batch_size": 16, "micro_batch_size": 2, "save_steps": 1000}}
STANDIN = {"STANDIN_LOAD": "30", "STANDIN_INIT": "25", "STANDIN_STEP": "1"}
POLL = 0.05


def wait(ready: Callable[[], Any]) -> None:
    while not ready():
        time.sleep(POLL)


def parallel(run: RunDirectory, found: Launch) -> tuple[float, float, float]:
    """Seconds to the first step, seconds per step after it, and seconds of CPU of the supervisor per step."""
    with Driver(run, found, "local", {}, lambda _: None) as driver:
        begun = time.monotonic()
        job = driver.ensure_allocation()
        assert job is not None
        wait(lambda: read_steps(run.log))
        first = time.monotonic()
        before = cpu_seconds(supervisor(run))
        total = found.config.trainer.train_steps or 1
        wait(lambda: len(read_steps(run.log)) >= total)
        per_step = (time.monotonic() - first) / (total - 1)
        used = (cpu_seconds(supervisor(run)) - before) / (total - 1)
        driver.wait(job, until_ready=False)
    return first - begun, per_step, used


def sequential(scene: Scene, found: Launch, output: Path) -> tuple[float, float]:
    """The same without supervision: seconds to the first step, and per step after it."""
    config, port = found.config, free_port()
    base = clean_environment(config, os.environ)
    begun = time.monotonic()
    server = start("rollout", rollout(config, scene.model, port, 1), base, output / "rollout.log")
    wait(lambda: is_healthy("127.0.0.1", port))
    paths = TrainPaths(scene.model, None, scene.dataset, output)
    servers = [Server("127.0.0.1", port, free_port())]
    command = train(config, paths, Ranks(master_port=free_port()), Parallel(), servers)
    argv = tuple(word for word in command.argv if not word.endswith("late_client.py"))
    trainer = start("trainer", Command(argv, command.env), base, output / "trainer.log")
    log = output / "logging.jsonl"
    wait(lambda: read_steps(log))
    first = time.monotonic()
    total = config.trainer.train_steps or 1
    wait(lambda: len(read_steps(log)) >= total)
    per_step = (time.monotonic() - first) / (total - 1)
    trainer.stop()
    server.stop()
    return first - begun, per_step


def supervisor(run: RunDirectory) -> int:
    """The process of the job that supervises: submitit's task for this run."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"submitit.core._submit" in line and str(run.submitit).encode() in line:
            return int(path.parent.name)
    raise SystemExit("no supervisor found")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--real", action="store_true", help="the real programs, on the CPU")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    arguments = parser.parse_args()
    overlay = {"trainer": {"train_steps": arguments.steps}}
    speeds = {} if arguments.real else {"cluster": {"env": STANDIN}}
    with tempfile.TemporaryDirectory(prefix="bringup-") as directory:
        scene = Scene(Path(directory), real=arguments.real)
        run, found = launch(scene, SMALL, overlay, speeds)
        alone, bare = sequential(scene, found, Path(directory) / "sequential")
        together, supervised, used = parallel(run, found)
    print(f"sequential  {alone:7.1f} s to the first step, {bare:.3f} s per step")
    print(f"parallel    {together:7.1f} s to the first step, {supervised:.3f} s per step")
    print(f"ratio       {together / alone:7.2f} (goal: 0.6)")
    share = used / supervised
    print(f"supervision {used * 1000:7.1f} ms of CPU per step, {share:.1%} of a step's time (goal: 1 %)")
    if arguments.json:
        numbers = {
            "programs": "real, on the CPU" if arguments.real else "stand-in",
            "steps": arguments.steps,
            "first_step_seconds": {"sequential": round(alone, 1), "parallel": round(together, 1)},
            "ratio": round(together / alone, 3),
            "step_seconds": {"unsupervised": round(bare, 3), "supervised": round(supervised, 3)},
            "supervision_cpu_seconds_per_step": round(used, 4),
            "supervision_share_of_a_step": round(share, 4),
        }
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
