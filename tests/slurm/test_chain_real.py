"""The whole chain, real programs on a real Slurm cluster, as people run it: `snakemake --profile slurm`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster_client import ClusterClient

pytestmark = [pytest.mark.real, pytest.mark.slurm]

ROOT = Path(__file__).resolve().parents[2]
SHORT = """
sft: {train_steps: 60}
trainer: {train_steps: 6, save_steps: 2}
evaluate: {samples: 1}
"""
PLAIN_RULES = {
    *("demo_model", "demo_data", "cache_dataset", "cache_sft"),
    *("sft", "convert_to_mcore", "evaluate", "export_hf"),
}


@dataclass(frozen=True)
class Chain:
    path: Path
    jobs: list[dict[str, str]]


@pytest.fixture(scope="module")
def chain(module_cluster: ClusterClient, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    path = tmp_path_factory.mktemp("chain")
    for part in ("Snakefile", "workflow", "config", "profiles", "slurm", "envs", ".envs"):
        (path / part).symlink_to(ROOT / part)
    (path / "short.yaml").write_text(SHORT)
    done = module_cluster.snakemake(
        path,
        *("--configfile", "config/config.yaml", "short.yaml"),
        # looks after 8, 26, 54 and 92 s: most of the jobs take 20 to 50 s
        *("--slurm-init-seconds-before-status-checks", "8", "--latency-wait", "5"),
        *("--set-resources", "train_grpo:slurm_partition=low"),
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return Chain(path, module_cluster.jobs_in(path, "JobName,State,Comment,Partition"))


def test_each_plain_stage_is_one_job_and_the_training_is_one(chain: Chain) -> None:
    assert {job["State"] for job in chain.jobs} == {"COMPLETED"}
    rl = [job for job in chain.jobs if job["Comment"].startswith("train_grpo")]
    assert [job["JobName"] for job in rl] == ["grpoflow-main"]
    plain = [job["Comment"] for job in chain.jobs if job not in rl]
    assert sorted(rule for rule in PLAIN_RULES for comment in plain if f"rule_{rule}" in comment) == sorted(
        PLAIN_RULES
    )
    assert len(plain) == len(PLAIN_RULES)


def test_set_resources_reaches_the_training_job(chain: Chain) -> None:
    """It is set for train_grpo, and rollout_server is the rule that submits."""
    partitions = {job["Comment"].split()[0]: job["Partition"] for job in chain.jobs}
    assert partitions["train_grpo"] == "low"
    assert {p for comment, p in partitions.items() if comment != "train_grpo"} == {"gpu"}


def test_logs_are_kept(chain: Chain) -> None:
    attempt = chain.path / "logs/main/train_grpo/attempt-1"
    assert {path.name for path in attempt.iterdir()} == {"rollout0.log", "trainer0.log"}
    assert len(list((chain.path / "logs/slurm").rglob("*.log"))) == len(PLAIN_RULES)


def test_the_real_programs_ran(chain: Chain) -> None:
    attempt = chain.path / "logs/main/train_grpo/attempt-1"
    assert "swift/cli/rollout.py" in (attempt / "rollout0.log").read_text()
    assert "swift/cli/_megatron/rlhf.py" in (attempt / "trainer0.log").read_text()
