"""The RL job over one and several nodes of the cluster: who runs where, and with which GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cluster_client import ClusterClient
from grpoflow.cli import main
from rl_run import RlRun
from scene import Scene

pytestmark = pytest.mark.slurm

GPUS = {"cluster": {"device": "cuda", "gpus_per_node": 8}, "trainer": {"parallel": {"tensor": 1}}}
PLACEMENTS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, str]]]] = {
    "one server, one trainer": (
        {"rollout": {"nodes": 1, "gpus": None}},
        {"rollout0": (0, "0,1,2,3,4,5,6,7"), "trainer0": (1, "0,1,2,3,4,5,6,7")},
    ),
    "one server, two trainers": (
        {"rollout": {"nodes": 1, "gpus": None}, "trainer": {"nodes": 2, "global_batch_size": 128}},
        {
            "rollout0": (0, "0,1,2,3,4,5,6,7"),
            "trainer0": (1, "0,1,2,3,4,5,6,7"),
            "trainer1": (2, "0,1,2,3,4,5,6,7"),
        },
    ),
    "two servers, one trainer": (
        {"rollout": {"nodes": 2, "gpus": None, "tensor_parallel_size": 4}},
        {
            "rollout0": (0, "0,1,2,3,4,5,6,7"),
            "rollout1": (1, "0,1,2,3,4,5,6,7"),
            "trainer0": (2, "0,1,2,3,4,5,6,7"),
        },
    ),
    "one node, GPUs split": (
        {"rollout": {"nodes": 0, "gpus": 2}},
        {"rollout0": (0, "0,1"), "trainer0": (0, "2,3,4,5,6,7")},
    ),
    "two nodes, colocate": (
        {"rollout": {"mode": "colocate", "gpus": None}, "trainer": {"nodes": 2, "global_batch_size": 128}},
        {"trainer0": (0, "0,1,2,3,4,5,6,7"), "trainer1": (1, "0,1,2,3,4,5,6,7")},
    ),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_roles_run_where_they_were_placed(cluster: ClusterClient, tmp_path: Path, name: str) -> None:
    overlay, expected = PLACEMENTS[name]
    rl = RlRun(cluster, tmp_path, GPUS, overlay, gres="gpu:a800:8")
    driver = rl.drive()
    driver.succeeds()
    rl.check_complete(12)

    logs = Path(rl.allocation()["logs"])
    assert {path.stem for path in logs.glob("*.log")} == set(expected)
    attempt = rl.run.attempts(rl.run.jobs())[-1]
    hosts = {path.stem: path.read_text() for path in (attempt.path / "nodes").glob("*.json")}
    assert len({re.search(r"a800-\d", text)[0] for text in hosts.values()}) == len(hosts)  # type: ignore[index]
    for role, (_, gpus) in expected.items():
        assert f"CUDA_VISIBLE_DEVICES={gpus}\n" in (logs / f"{role}.log").read_text()
    placed = {role.name: node for node, role in (*_roles(rl),)}
    assert placed == {role: node for role, (node, _) in expected.items()}
    # the job asked for exactly these nodes, and it is one job
    assert cluster.squeue(rl.job(), "%D %T") == f"{len(hosts)} COMPLETED"
    assert not rl.processes()


@pytest.mark.parametrize(
    ("gres", "code", "words"),
    [
        ("gpu:a800:8", 0, "main: Job "),
        (
            "gpu:a800:9",
            1,
            "main: sbatch would refuse the job: allocation failure: Requested node",
        ),
    ],
)
def test_plan_asks_slurm(
    cluster: ClusterClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    gres: str,
    code: int,
    words: str,
) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(Scene(tmp_path).raw()))
    (tmp_path / "profile.yaml").write_text(f"set-resources: {{train_grpo: {{gres: {gres}}}}}")
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    config, profile = tmp_path / "config.yaml", tmp_path / "profile.yaml"
    assert main(["plan", "--sbatch", str(config), "--profile", str(profile)]) == code
    assert words in capsys.readouterr().err
    assert "RUN" not in cluster.run("squeue", "--format=%k")


def _roles(rl: RlRun) -> list[tuple[int, Any]]:
    from grpoflow.plan.inputs import placement_of  # noqa: PLC0415

    placement = placement_of(rl.config)
    return [*placement.rollout_servers, *placement.trainers]
