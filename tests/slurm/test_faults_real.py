"""The real programs through the faults of test_faults.py that matter most, all in one run of the cluster.

Snakemake is killed, a trainer rank in a step, the server in a rollout, and the wall-time comes to its
end: the run goes through all of it and trains every step.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from cluster_client import ClusterClient
from grpoflow.commands.convert import to_mcore
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.environment import clean_environment
from grpoflow.launch.ports import free_port
from grpoflow.launch.process import run
from grpoflow.launch.slurm import job_facts
from rl_run import wait
from scene import ROOT
from snake_run import SnakeRun

pytestmark = [pytest.mark.slurm, pytest.mark.real]

STEPS, SAVE = 60, 5
SHORT = {
    "trainer": {
        **{"train_steps": STEPS, "save_steps": SAVE, "global_batch_size": 16, "micro_batch_size": 2},
        "stop_margin": 90,
    }
}
BRING_UP = 300.0


class RealRun(SnakeRun):
    real = True

    def convert(self) -> None:
        """Make the Megatron checkpoint that the workflow would have converted."""
        (manifest,) = self.directory.glob("results/shared/mcore/*/manifest.json")
        output = manifest.parent / "checkpoint"
        command = to_mcore(self.config, self.scene.model, output, Ranks(master_port=free_port()))
        base = clean_environment(self.config, os.environ)
        run("to_mcore", command, base, self.directory / "to_mcore.log")

    def programs(self) -> set[str]:
        """Which of the real programs run, by their files."""
        known = ("swift/cli/rollout.py", "swift/cli/_megatron/rlhf.py", "VLLM::EngineCore")
        return {name for name in known if self.processes(name)}


@pytest.fixture
def rl(module_cluster: ClusterClient, tmp_path: Path) -> RealRun:
    found = RealRun(module_cluster, tmp_path, SHORT, mem_mb=12000, cpus_per_task=2, runtime=60)
    (tmp_path / ".envs").symlink_to(ROOT / ".envs")
    found.convert()
    return found


def test_a_run_goes_through_everything(rl: RealRun, module_cluster: ClusterClient) -> None:
    try:
        go_through(rl, module_cluster)
    finally:
        rl.end()


def go_through(rl: RealRun, cluster: ClusterClient) -> None:
    first = rl.snakemake()
    rl.wait_for_new_steps(2, BRING_UP)
    assert rl.programs() == {"swift/cli/rollout.py", "swift/cli/_megatron/rlhf.py", "VLLM::EngineCore"}
    job = rl.job()

    # the driver dies; the next one finds the job
    first.kill()
    first.wait()
    rl.snakemake("--unlock").succeeds()
    second = rl.snakemake()
    second.wait_for(f"attached to job {job}", 60)

    # a rank dies in a step
    rl.wait_for_new_steps(SAVE, 120)
    rl.kill("swift/cli/_megatron/rlhf.py")
    wait(lambda: len(rl.ends()) == 2, 60)
    assert "SIGKILL" in rl.ends()[0]["cause"]
    rl.wait_for_new_steps(SAVE, BRING_UP)

    # the server dies in a rollout
    rl.kill("swift/cli/rollout.py")
    wait(lambda: len(rl.ends()) == 3, 60)
    rl.wait_for_new_steps(SAVE, BRING_UP)

    # the wall-time comes to an end
    facts = job_facts(job)
    assert facts is not None
    assert facts.started is not None
    minutes = int((time.time() - facts.started) / 60) + 1
    cluster.run("scontrol", "update", f"jobid={job}", f"TimeLimit={minutes}")
    wait(lambda: rl.ends()[2], 180)
    assert rl.ends()[2]["status"] == "stopped"
    rl.start_now()

    second.succeeds(2 * BRING_UP)
    assert rl.job() == job
    assert [end["status"] for end in rl.ends()] == ["failed", "failed", "stopped", "complete"]
    rl.check_complete(STEPS, interruptions=2, save_steps=SAVE)
    # the sampler of vLLM cannot be restored, the order of the prompts can
    assert rl.check_prompts() > 0
    assert not rl.processes()
    assert (rl.directory / "results/main/train.json").is_file()
