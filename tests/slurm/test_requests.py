"""What the configuration needs arrives in Slurm: a job of a GPU stage as accounting has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from cluster_client import ClusterClient

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "workflow", "profiles", "slurm", "envs")


def test_a_stage_asks_for_the_gpus_that_hold_the_model(module_cluster: ClusterClient, tmp_path: Path) -> None:
    """The checkpoint is config.json alone, so the stage itself ends at once."""
    for part in PARTS:
        (tmp_path / part).symlink_to(ROOT / part)
    (tmp_path / "model").mkdir()
    source = ROOT / "tests/data/configs/qwen3.5-122B-A10B.json"
    (tmp_path / "model/config.json").write_text(source.read_text())
    mine = {
        "model": {"path": "model"},
        "data": {"train": "train.jsonl", "val": "val.jsonl"},
        "rewards": {"functions": ["accuracy"]},
        "cluster": {"environment": "none", "probe": False, "host_memory_gib": 20},
    }
    for name in ("train.jsonl", "val.jsonl"):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    recipes = ROOT / "config/recipes"
    done = module_cluster.snakemake(
        tmp_path,
        *("--configfile", ROOT / "config/clusters/a800-8x.yaml", recipes / "base.yaml"),
        *(recipes / "122b-a10b-full-server-5n.yaml", "mine.yaml", "--until", "convert_to_mcore"),
        *("--retries", "0", "--slurm-init-seconds-before-status-checks", "5", "--latency-wait", "1"),
    )
    assert "failed: model has no tokenizer_config.json" in done.stdout, done.stdout[-4000:]
    (job,) = module_cluster.jobs_in(tmp_path, "ReqTRES%100")
    found = dict(item.split("=") for item in job["ReqTRES"].split(","))
    assert (found["gres/gpu"], found["cpu"], found["mem"]) == ("8", "32", "19G")
