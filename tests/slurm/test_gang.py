"""A program of a stage over several nodes of the cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_client import ClusterClient
from grpoflow.commands.base import Command
from grpoflow.commands.distributed import Ranks, torchrun_environment
from grpoflow.config import Config
from grpoflow.launch.gang import Gang, GangFailed
from grpoflow.launch.slurm import jobs_with_comment
from grpoflow.preflight.probed import probe_path, probed
from grpoflow.stages import convert, evaluate
from grpoflow.stages.base import Stage, StageFailed
from grpoflow.stages.dag import Dag
from grpoflow.stages.probe import probe_nodes
from rl_run import wait
from scene import REAL_ENVIRONMENT, ROOT, Scene

pytestmark = pytest.mark.slurm

RESOURCES = {"launcher": "slurm", "mem_mb": 500, "runtime": 5, "cpus_per_task": 1}
MEMBER = """
import os, socket, sys, time
sys.path.insert(0, {programs!r})
from group import Group
print(sorted(name for name in os.environ if name.startswith("SLURM")), flush=True)
group = Group()
total = group.maximum(10 + group.rank)
print("largest", total, "on", os.environ["NODE_RANK"], flush=True)
{last}
"""


@pytest.fixture
def scene(cluster: ClusterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    return Scene(tmp_path)


@pytest.fixture
def config(scene: Scene) -> Config:
    return scene.config()


def gang(config: Config, directory: Path, *last: str, name: str = "sum") -> Gang:
    """A program on as many nodes as there are last lines."""
    programs = str(ROOT / "tests/standin/programs")
    commands = [
        Command(
            (sys.executable, "-c", MEMBER.format(programs=programs, last=line)),
            torchrun_environment(Ranks(1, len(last), node)),
        )
        for node, line in enumerate(last)
    ]
    logs = directory / "logs"
    logs.mkdir(exist_ok=True)
    return Gang(name, f"owner of {directory}", directory / f"job-{time.time()}", config, commands, logs)


def test_members_meet(config: Config, tmp_path: Path) -> None:
    said: list[str] = []
    made = gang(config, tmp_path, *["pass"] * 3)
    made.run(RESOURCES, said.append)
    for node in range(3):
        # nothing of Slurm's environment: a nested torch would take it for its own
        assert made.log(node).read_text() == f"[]\nlargest 12 on {node}\n"
    assert "on 3 nodes" in said[0]
    assert jobs_with_comment(made.comment) == []


def test_one_failed_member_ends_all(config: Config, tmp_path: Path) -> None:
    wrong = "raise RuntimeError('CUDA error: device-side assert triggered')"
    made = gang(config, tmp_path, "time.sleep(600)", wrong)
    begun = time.monotonic()
    with pytest.raises(GangFailed, match="sum on node 1 ended with exit code 1") as failure:
        made.run(RESOURCES, lambda _: None)
    assert time.monotonic() - begun < 60
    assert "device-side assert triggered" in str(failure.value)
    assert jobs_with_comment(made.comment) == []


def test_a_cancelled_job_is_no_success(config: Config, tmp_path: Path, cluster: ClusterClient) -> None:
    made = gang(config, tmp_path, "time.sleep(600)", "time.sleep(600)")
    _later(
        lambda: "largest" in _text(made.log(1)),
        lambda: cluster.run("scancel", *jobs_with_comment(made.comment)),
    )
    with pytest.raises(GangFailed, match=r"received SIGTERM|ended \(CANCELLED\)"):
        made.run(RESOURCES, lambda _: None)


def test_the_job_of_a_killed_driver_is_ended(config: Config, tmp_path: Path, cluster: ClusterClient) -> None:
    left = gang(config, tmp_path, "time.sleep(600)", "time.sleep(600)")
    pid = os.fork()
    if pid == 0:  # a driver
        left.run(RESOURCES, lambda _: None)
        os._exit(0)
    wait(lambda: "largest" in _text(left.log(1)), 60)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (job,) = jobs_with_comment(left.comment)
    said: list[str] = []
    gang(config, tmp_path, "pass", "pass").run(RESOURCES, said.append)
    assert said[0] == f"sum: cancelling job {job}, which a former driver left"
    assert cluster.squeue(job) == "CANCELLED"


def test_an_interrupt_cancels(config: Config, tmp_path: Path) -> None:
    made = gang(config, tmp_path, "time.sleep(600)", "time.sleep(600)")
    _later(lambda: "largest" in _text(made.log(1)), lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        made.run(RESOURCES, lambda _: None)
    wait(lambda: jobs_with_comment(made.comment) == [], 30)


EXPORT = """#!{python}
import os, sys
sys.path.insert(0, {programs!r})
from group import Group
group = Group()
assert group.maximum(group.rank) == 2
words = sys.argv[1:]
layout = words[words.index("--tensor_model_parallel_size"):][:10]
print(words[0], os.environ["NPROC_PER_NODE"], *layout, flush=True)
raise SystemExit("that is enough")
"""


def test_a_large_model_is_converted_over_nodes(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is ours; its command lines and the nodes on which it runs are the stage's."""
    large = ROOT / "tests/data/configs/qwen3.5-397B-A17B.json"
    (scene.model / "config.json").write_text(large.read_text())
    monkeypatch.setattr(convert, "check_hf_directory", lambda *_: {})
    raw = scene.raw({"cluster": {"device": "cuda", "gpus_per_node": 8}, "model": {"torch_dtype": "bfloat16"}})
    program = tmp_path / "environment/bin/megatron"
    program.write_text(EXPORT.format(python=sys.executable, programs=str(ROOT / "tests/standin/programs")))
    dag = Dag(raw)
    assert dag.wide_rules == {"convert_to_mcore", "export_hf"}
    output = tmp_path / "results/mcore/manifest.json"
    output.parent.mkdir(parents=True)

    def stage(*, is_driver: bool) -> Stage:
        inputs, logs = {"start": str(scene.model / "config.json")}, tmp_path / "logs"
        return Stage(
            "convert_to_mcore", "x", dag.experiments["main"], inputs, output, logs, RESOURCES, is_driver
        )

    with pytest.raises(GangFailed, match=r"to_mcore on node \d ended with exit code 1"):
        convert.convert_to_mcore(stage(is_driver=True))
    layout = "--tensor_model_parallel_size 1 --pipeline_model_parallel_size 3 --context_parallel_size 1"
    for node in range(3):
        assert (tmp_path / f"logs/to_mcore-{node}.log").read_text().startswith(f"export 8 {layout}")
    with pytest.raises(StageFailed, match="to_mcore needs 3 nodes: use --profile slurm"):
        convert.convert_to_mcore(stage(is_driver=False))


INFER = """#!{python}
import json, os, sys
sys.path.insert(0, {programs!r})
from group import Group
group = Group()
assert group.maximum(group.rank) == 1
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
print(sys.argv[1], os.environ["NPROC_PER_NODE"], options["--vllm_tensor_parallel_size"], flush=True)
if group.rank == 0:
    with open(options["--val_dataset"]) as rows, open(options["--result_path"], "w") as answers:
        for row in map(json.loads, rows):
            print(json.dumps({{"response": "1 + 1 is 2", "messages": row["messages"]}}), file=answers)
"""


def test_a_large_model_is_evaluated_over_nodes(scene: Scene, tmp_path: Path) -> None:
    """As above: the ranks are the stage's, the completions are ours."""
    overlay: dict[str, Any] = {
        "cluster": {"device": "cuda", "gpus_per_node": 8},
        "rollout": {"mode": "colocate", "tensor_parallel_size": 16},
        "evaluate": {"engine": "vllm"},
    }
    program = tmp_path / "environment/bin/swift"
    program.write_text(INFER.format(python=sys.executable, programs=str(ROOT / "tests/standin/programs")))
    dag = Dag(scene.raw(overlay))
    assert dag.wide_rules == {"evaluate"}
    output, logs = tmp_path / "results/evaluation/manifest.json", tmp_path / "logs"
    stage = Stage("evaluate", "x", dag.experiments["main"], {}, output, logs, RESOURCES, is_driver=True)
    rows = [{"messages": [{"role": "user", "content": f"{n} + 1"}], "answer": n + 1} for n in range(3)]
    completed = evaluate._complete(stage, "sft-greedy", tmp_path / "model", rows, 1, "", tmp_path)
    assert [row["completion"] for row in evaluate.read_rows(completed)] == ["1 + 1 is 2"] * 3
    for node in range(2):
        assert (logs / f"infer-sft-greedy-{node}.log").read_text().startswith("infer 8 16")


@pytest.mark.real
def test_two_nodes_are_probed(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there = {"environment": str(REAL_ENVIRONMENT), "probe": True}
    config = scene.config({"cluster": there, "rollout": {"nodes": 1, "gpus": None}})
    path = probe_path(config)
    assert path is not None
    path.parent.mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    resources = {**RESOURCES, "mem_mb": 4000}
    logs = tmp_path / "logs"
    stage = Stage("probe_nodes", "x", config, {}, path.absolute(), logs, resources, is_driver=True)
    probe_nodes(stage)
    found = probed(config)
    assert found is not None
    assert [node["network"]["backend"] for node in found["nodes"]] == ["gloo", "gloo"]
    assert all(node["network"]["gb_per_second"] > 0 for node in found["nodes"])
    assert all(node["canary"] is None for node in found["nodes"])


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def _later(ready: Callable[[], bool], do: Callable[[], Any]) -> None:
    def watch() -> None:
        wait(ready, 60)
        do()

    threading.Thread(target=watch, daemon=True).start()
