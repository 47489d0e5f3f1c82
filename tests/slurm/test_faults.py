"""Faults of an RL job, each on the real cluster with the programs of the stand-in.

Each ends with all steps done, no complete checkpoint lost, at most one save interval repeated, and the cause
named in what the driver says. They mostly wait, so those that leave the cluster alone run side by side.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster_client import ClusterClient
from rl_run import RlRun, wait
from snake_run import SnakeRun

pytestmark = pytest.mark.slurm

STEPS, SAVE = 16, 4


def speed(**values: float | str) -> dict[str, Any]:
    """Seconds of the stand-in's parts."""
    defaults: dict[str, float | str] = {"LOAD": 0.1, "INIT": 0.1, "STEP": 0.25}
    env = {f"STANDIN_{name}": str(value) for name, value in (defaults | values).items()}
    return {"cluster": {"env": env}, "trainer": {"train_steps": STEPS, "save_steps": SAVE}}


class Runs:
    """Makes the runs of one test, and ends what is left of them."""

    def __init__(self, cluster: ClusterClient, directory: Path):
        self.cluster, self.directory = cluster, directory
        self.made: list[RlRun] = []

    def new(
        self,
        *overlays: dict[str, Any],
        speeds: dict[str, Any] | None = None,
        kind: type[RlRun] = RlRun,
        **resources: Any,
    ) -> Any:
        directory = self.directory / str(len(self.made))
        resources = {"slurm_extra": "--nodelist=a800-0"} | resources
        rl = kind(self.cluster, directory, speed(**(speeds or {})), *overlays, **resources)
        self.made.append(rl)
        return rl

    def end(self) -> None:
        for rl in self.made:
            rl.end()


Scenario = Callable[[Runs], None]
TOGETHER: dict[str, Scenario] = {}
AT_ONCE = 8


def together(scenario: Scenario) -> Callable[[dict[str, Future[None]]], None]:
    """Make a test of a scenario that runs beside others."""

    def test(results: dict[str, Future[None]]) -> None:
        results[scenario.__name__].result()

    test.__doc__ = scenario.__doc__
    TOGETHER[scenario.__name__] = scenario
    return test


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest,
    module_cluster: ClusterClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[None]]]:
    """The selected scenarios of TOGETHER, running."""

    def run(name: str, directory: Path) -> None:
        runs = Runs(module_cluster, directory)
        try:
            TOGETHER[name](runs)
        finally:
            runs.end()

    selected = [item.name for item in request.session.items if item.name in TOGETHER]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # a fixture of pytest is not for several threads
        yield {name: pool.submit(run, name, tmp_path_factory.mktemp(name)) for name in selected}


@pytest.fixture
def runs(results: dict[str, Future[None]], module_cluster: ClusterClient, tmp_path: Path) -> Iterator[Runs]:
    """For a test that needs the cluster for itself: it waits until the others are done."""
    futures.wait(results.values())
    made = Runs(module_cluster, tmp_path)
    yield made
    made.end()


@together
def test_01_trainer_killed(runs: Runs) -> None:
    rl = runs.new()
    driver = rl.drive()
    rl.wait_for_step(6)
    rl.kill("trainer.py")
    driver.succeeds()
    rl.check_complete(STEPS, interruptions=1)
    assert rl.check_prompts() > 0
    assert "trainer0 ended with exit code 1" in driver.said
    assert "SIGKILL" in driver.said


@together
def test_02_server_killed(runs: Runs) -> None:
    rl = runs.new()
    driver = rl.drive()
    rl.wait_for_step(6)
    rl.kill("server.py", "--port")
    driver.succeeds()
    rl.check_complete(STEPS, interruptions=1)
    # whoever notices first: the server that ended, or the trainer that could not reach it
    assert "rollout0 was killed by signal 9 (SIGKILL)" in driver.said or "Multiple errors" in driver.said


@together
def test_03_server_hangs(runs: Runs) -> None:
    """`/health` goes on answering."""
    rl = runs.new({"trainer": {"stall_timeout": 3}})
    driver = rl.drive()
    rl.wait_for_step(6)
    rl.kill("VLLM::EngineCore", number=signal.SIGSTOP)
    driver.succeeds()
    rl.check_complete(STEPS, interruptions=1)
    assert "the training stands still: no new step for" in driver.said
    assert "trainer.stall_timeout" in driver.said


@together
def test_04_wall_time(runs: Runs) -> None:
    """60 s of wall-time, of which the margin leaves 15: saved before it, requeued, resumed, complete."""
    rl = runs.new({"trainer": {"stop_margin": 45, "train_steps": 30}}, speeds={"STEP": 0.6}, runtime=1)
    driver = rl.drive()
    rl.start_now()
    driver.succeeds()
    first, *_, last = rl.ends()
    assert (first["status"], last["status"]) == ("stopped", "complete")
    # nothing is repeated: it was saved at the step at which it stopped
    rl.check_complete(30, interruptions=0)
    assert "stopped, back into the queue: saved checkpoint-" in driver.said
    assert len(rl.run.jobs()) == 1


@together
def test_04_wall_time_over(runs: Runs) -> None:
    """A step that never ends keeps the training from stopping in time: Slurm's signal does."""
    rl = runs.new({"trainer": {"max_restarts": 0}}, speeds={"STEP": 1000}, runtime=1)
    driver = rl.drive()
    assert driver.wait(150) == 1
    (end,) = rl.ends()
    assert end["status"] == "stopped"
    assert "the wall-time was over before the training had stopped" in driver.said
    assert "1 attempts in a row ended without a new checkpoint (trainer.max_restarts: 0)" in driver.said


def preempt(runs: Runs, rl: RlRun) -> None:
    """Take the run's node for a job of the higher partition, and give it back."""
    high = ("--partition=high", "--nodelist=a800-3", "--gpus-per-node=a800:8", "--mem=500")
    runs.cluster.run("srun", *high, "true")
    rl.start_now()


@together
def test_05_preempted(runs: Runs) -> None:
    rl = runs.new(slurm_partition="low", gres="gpu:a800:8", slurm_extra="--nodelist=a800-3")
    driver = rl.drive()
    rl.wait_for_step(6)
    preempt(runs, rl)
    driver.succeeds()
    rl.check_complete(STEPS, interruptions=1)
    assert [end["status"] for end in rl.ends()] == ["preempted", "complete"], rl.ends()
    assert "preemption" in rl.ends()[0]["cause"]


def test_05_preempted_with_time_to_save(runs: Runs) -> None:
    """The partition leaves a minute: saved at the next step, nothing is repeated."""
    runs.cluster.run("scontrol", "update", "partitionname=low", "GraceTime=60")
    try:
        rl = runs.new(
            {"trainer": {"stop_margin": 5}},
            speeds={"STEP": 1},
            slurm_partition="low",
            gres="gpu:a800:8",
            slurm_extra="--nodelist=a800-3",
        )
        driver = rl.drive()
        rl.wait_for_step(5)
        preempt(runs, rl)
        driver.succeeds()
    finally:
        runs.cluster.run("scontrol", "update", "partitionname=low", "GraceTime=0")
    rl.check_complete(STEPS, interruptions=0)
    assert [end["status"] for end in rl.ends()] == ["preempted", "complete"]
    assert "saved checkpoint-" in rl.ends()[0]["cause"]


@together
def test_06_node_fails(runs: Runs) -> None:
    """The node of the trainer goes away with all its processes."""
    rl = runs.new({"rollout": {"nodes": 1, "gpus": None}}, slurm_extra="--nodelist=a800-1,a800-2")
    driver = rl.drive()
    rl.wait_for_step(6)
    try:
        runs.cluster.kill_node(2)
        wait(lambda: rl.ends()[0], 20)
    finally:
        runs.cluster.start_node(2)
    rl.start_now()
    driver.succeeds()
    rl.check_complete(STEPS, interruptions=1)
    assert "Slurm put the job back into the queue: node failure of a800-2" in driver.said


@together
def test_10_disk_full(runs: Runs) -> None:
    """Full in the middle of a save: said, not tried again, and resumed when there is space."""
    rl = runs.new(speeds={"SHARD": 1_000_000, "SAVE": 0.7})
    (rl.scene.model / "config.json").write_text('{"model_type": "qwen3_5"}')  # nothing known of its size
    results = rl.directory / "results"
    shared = rl.directory / "shared"
    shutil.move(results / "shared", shared)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", results], check=True)
    try:
        shutil.copytree(shared, results / "shared")
        driver = rl.drive()
        rl.wait_for_step(8)
        wait((rl.run.output / "checkpoint-8").is_dir, 10)
        filler = results / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(24 << 20))
        assert driver.wait() == 1
        assert "No space left on device" in driver.said
        assert "not tried again" in driver.said
        os.truncate(filler, filler.stat().st_size - 500_000)  # enough to write down why, not for a checkpoint
        driver = rl.drive()
        assert driver.wait() == 1
        assert "no space for the next checkpoint: it needs 0.003 GB" in driver.said
        filler.unlink()
        rl.drive().succeeds()
        rl.check_complete(STEPS, interruptions=1)
    finally:
        rl.end()
        subprocess.run(["umount", results], check=True)


@together
def test_11_torn_checkpoint(runs: Runs) -> None:
    rl = runs.new()
    driver = rl.drive()
    rl.wait_for_step(9)
    driver.process.send_signal(signal.SIGINT)
    assert driver.wait() == 130
    shard = next((rl.run.output / "checkpoint-8").glob("iter_*/__0_1.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    rl.drive().succeeds()
    assert rl.allocation()["resume_step"] == 4
    rl.check_complete(STEPS, interruptions=2)
    assert list(rl.run.output.glob("incomplete-checkpoint-8-*"))


@together
def test_12_port_taken(runs: Runs) -> None:
    """Taken between the look at it and its use: the next attempt has other ports."""
    rl = runs.new(speeds={"LOAD": 4})
    driver = rl.drive()
    wait(lambda: rl.allocation().get("port_base"), 20)
    port = rl.allocation()["port_base"] + 1
    with socket.create_server(("", port)):
        wait(lambda: rl.ends()[0], 20)
    driver.succeeds()
    rl.check_complete(STEPS)
    assert f"{port}" in rl.ends()[0]["cause"] or "in use" in rl.ends()[0]["cause"]
    assert rl.allocation()["port_base"] != port - 1


def test_13_slurmctld_restarts(runs: Runs) -> None:
    rl = runs.new(speeds={"STEP": 0.7})
    driver = rl.drive()
    rl.wait_for_step(2)
    pid = int((runs.cluster.root / "run/slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    driver.wait_for("Slurm does not answer")
    conf = runs.cluster.root / "etc/slurm.conf"
    # not by the control script, which cancels all jobs when it finds the controller down
    runs.cluster.run("slurmctld", "-f", conf)
    driver.succeeds()
    rl.check_complete(STEPS)
    assert len(rl.ends()) == 1


@together
def test_15_two_drivers(runs: Runs) -> None:
    """One job; the second driver watches it, and its Ctrl-C does not cancel what it does not drive."""
    rl = runs.new(speeds={"STEP": 1})
    drivers = [rl.drive() for _ in range(3)]

    def watching() -> list[Any]:
        return [driver for driver in drivers if "drives it" in driver.said]

    wait(lambda: len(watching()) == 2, 20, lambda: "\n".join(driver.said for driver in drivers))
    rl.wait_for_step(2)
    watchers = watching()
    watchers[0].process.send_signal(signal.SIGINT)
    assert watchers[0].wait() == 130
    for driver in drivers:
        if driver is not watchers[0]:
            driver.succeeds()
    rl.check_complete(STEPS)
    jobs = rl.cluster.run("squeue", "--states=all", "--noheader", "--name=grpoflow-main", "--format=%i %k")
    comment = rl.cluster.squeue(rl.job(), "%k")
    assert [line.split()[0] for line in jobs.splitlines() if line.endswith(comment)] == [rl.job()]


@together
def test_16_budget_used_up(runs: Runs) -> None:
    (runs.directory / "crash").write_text("6")
    rl = runs.new({"trainer": {"max_restarts": 1}}, speeds={"FAULTS": str(runs.directory)})
    driver = rl.drive()
    assert driver.wait() == 1
    # the first attempt got to checkpoint-4, the next two got no further
    assert [end["status"] for end in rl.ends()] == ["failed"] * 3
    failure = driver.said[driver.said.index("stage train_grpo of main failed") :]
    assert "2 attempts in a row ended without a new checkpoint (trainer.max_restarts: 1)" in failure
    assert "RuntimeError: the file `crash` says so" in failure
    assert driver.said.count("stage train_grpo of main failed") == 1
    # what was saved is still there, and a new start has a new budget
    (runs.directory / "crash").unlink()
    rl.drive().succeeds()
    rl.check_complete(STEPS, interruptions=3)


@together
def test_garbage_after_the_first_sync(runs: Runs) -> None:
    """Said with its known causes and not tried again; nothing that was saved of it counts. The trainer may be
    faster than the look at the servers, which then finds it."""
    (runs.directory / "garbage").touch()
    rl = runs.new({"trainer": {"save_steps": 1}}, speeds={"FAULTS": str(runs.directory)})
    driver = rl.drive()
    assert driver.wait() == 1
    assert "completions: one symbol repeated. Known causes:" in driver.said
    assert "ms-swift PR#9060" in driver.said
    assert [end["status"] for end in rl.ends()] == ["failed"]
    assert not list(rl.run.output.glob("checkpoint-*"))
    (runs.directory / "garbage").unlink()
    rl.drive().succeeds()
    assert rl.allocation()["resume_step"] == 0
    rl.check_complete(STEPS, interruptions=STEPS, save_steps=1)


@together
def test_08_driver_killed(runs: Runs) -> None:
    """Snakemake and its stage are killed; the job goes on, and the next Snakemake finds it."""
    rl = runs.new(kind=SnakeRun, speeds={"STEP": 2})  # long enough for two starts of Snakemake
    first = rl.snakemake()
    rl.wait_for_step(1)
    job = rl.job()
    first.kill()  # Snakemake alone: its stage has to notice
    wait(lambda: not stages_below(rl.directory), 20, lambda: f"{stages_below(rl.directory)}\n{first.said}")
    assert rl.cluster.squeue(job) == "RUNNING"
    rl.snakemake("--unlock").succeeds()
    second = rl.snakemake()
    second.succeeds()
    assert f"attached to job {job}" in second.said
    assert rl.job() == job
    rl.check_complete(STEPS)
    assert (rl.directory / "results/main/train.json").is_file()


@together
def test_09_interrupted(runs: Runs) -> None:
    """SIGINT for Snakemake alone, as `kill -INT` sends it: the job is cancelled and no process is left.

    Once while a stage watches the job, once between the two stages, when none can hear it.
    """
    watched = runs.new(kind=SnakeRun, speeds={"STEP": 5})
    between = runs.new(kind=SnakeRun, speeds={"STEP": 5})
    for rl, sign in ((watched, "training  step 1/"), (between, "Finished jobid")):
        driver = rl.snakemake()
        driver.wait_for(sign, 60)
        job = rl.job()
        driver.process.send_signal(signal.SIGINT)
        assert driver.wait() != 0
        assert f"job {job} is cancelled" in driver.said
        assert rl.cluster.squeue(job) == "CANCELLED"
        assert not rl.processes(), rl.processes()
        assert not stages_below(rl.directory), stages_below(rl.directory)
        assert rl.ends()[-1]["status"] == "cancelled"


@together
def test_09_terminated_and_hung_up(runs: Runs) -> None:
    """TERM and HUP, which closing the terminal sends to all, end drivers and leave the job alone."""
    rl = runs.new(speeds={"STEP": 0.5})
    for number in (signal.SIGTERM, signal.SIGHUP):
        driver = rl.drive()
        rl.wait_for_step(1)
        os.killpg(driver.process.pid, number)
        assert driver.wait() == -number
    driver = rl.drive()
    driver.succeeds()
    rl.check_complete(STEPS)
    assert len(rl.ends()) == 1


@together
def test_supervisor_killed(runs: Runs) -> None:
    """Nobody is left to say why the job ended, and Slurm says that it failed: the driver submits another."""
    rl = runs.new()
    driver = rl.drive()
    rl.wait_for_step(6)
    os.kill(rl.supervisors()[0], signal.SIGKILL)
    driver.succeeds()
    rl.check_complete(STEPS, interruptions=1)
    assert len(rl.run.jobs()) == 2
    assert "(failed): Slurm ended it: FAILED; submitting it again" in driver.said


def stages_below(directory: Path) -> list[int]:
    """The stages that run in a directory, whoever their parent is by now."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").readlink() == directory and b"stage.py" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/memory", os.W_OK), reason="needs the cgroup v1 memory controller, writable"
)
def test_07_memory_14_no_accounting(runs: Runs) -> None:
    """The trainer takes more memory than the job has, on a cluster with cgroups and without accounting."""
    runs.cluster.stop()
    try:
        runs.cluster.start("--cgroup", "--accounting", "none", "--nodes", "1")
        (runs.directory / "faults").mkdir()
        rl = runs.new(speeds={"FAULTS": str(runs.directory / "faults")}, mem_mb=600)
        driver = rl.drive()
        rl.wait_for_step(6)
        (runs.directory / "faults/eat").touch()
        driver.succeeds()
        rl.check_complete(STEPS, interruptions=1)
        assert "trainer0 ended with exit code 1" in driver.said
        assert "the kernel killed 1 of the job's processes: out of memory" in driver.said
    finally:
        runs.end()
        runs.cluster.stop()
