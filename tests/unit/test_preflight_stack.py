"""Packages that do not work together: seen in the environment's metadata or in a probe of the nodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from configurations import config, environment
from grpoflow.config import load_experiments
from grpoflow.facts.engine import engine_arguments
from grpoflow.preflight import check_raw
from grpoflow.preflight.probed import Node, node_of, probe_path

SEEN = {
    "torch": "2.11.0",
    "triton": "3.6.0",
    "transformers": "5.12.1",
    "vllm": "0.23.0",
    "transformer_engine_cu13": "2.12.0",
    "nvidia_cublas": "13.1.0.3",
    "nvidia_cudnn_cu13": "9.19.0.56",
    "fla_core": "0.4.2",
    "flashinfer_python": "0.6.12",
}
"""A set without any of these faults."""
HOPPER: dict[str, Any] = {"cluster": {"gpu": "H200"}}
AMPERE: dict[str, Any] = {"cluster": {"gpu": "A800-SXM4-80GB"}}
COLOCATE: dict[str, Any] = {"rollout": {"mode": "colocate", "gpu_memory_utilization": 0.5}}
RULES = {
    "transformer_engine_finds_its_cublas",
    "one_cudnn_is_found",
    "transformers_saves_beside_vllm",
    "fla_trains_on_hopper",
    "gated_delta_net_prefill_is_there",
}


def found(here: Path, changes: dict[str, str | None], *overlays: dict[str, Any]) -> set[str]:
    versions = {name: version for name, version in {**SEEN, **changes}.items() if version is not None}
    prefix = {"cluster": {"environment": environment(here, **versions)}}
    configs, report = check_raw(config(*overlays, prefix))
    assert configs, report
    return {problem.id for problem in report.problems} & RULES


@pytest.mark.parametrize("gpu", [HOPPER, AMPERE])
@pytest.mark.parametrize("place", [{}, COLOCATE])
def test_a_good_set_is_fine(tmp_path: Path, gpu: dict[str, Any], place: dict[str, Any]) -> None:
    assert found(tmp_path, {}, gpu, place) == set()


@pytest.mark.parametrize(
    ("changes", "overlays", "rule"),
    [
        ({"transformer_engine_cu13": "2.16.0"}, [], "transformer_engine_finds_its_cublas"),
        ({"transformer_engine_cu13": "2.16.0", "nvidia_cublas": "13.2.0.9"}, [], None),
        ({"transformer_engine_cu13": None, "transformer_engine_cu12": "2.16.0"}, [], None),
        ({"nvidia_cudnn_cu12": "9.14.0"}, [], "one_cudnn_is_found"),
        ({"nvidia_cudnn_cu12": "9.14.0"}, [{"cluster": {"env": {"LD_LIBRARY_PATH": "/x"}}}], None),
        ({"transformers": "5.17.0"}, [COLOCATE], "transformers_saves_beside_vllm"),
        ({"transformers": "5.17.0"}, [], None),
        ({"transformers": "5.17.0", "vllm": "0.25.1"}, [COLOCATE], None),
        # seen to save: the swift backend wrote its checkpoint with the same two
        ({"transformers": "5.17.0"}, [COLOCATE, {"trainer": {"backend": "swift", "parallel": "auto"}}], None),
        ({"fla_core": "0.5.2"}, [HOPPER], "fla_trains_on_hopper"),
        ({"fla_core": "0.5.2"}, [AMPERE], None),
        ({"fla_core": "0.6.0", "tilelang": "0.1.9"}, [HOPPER], None),
        ({"fla_core": "0.6.0", "triton": "3.7.1"}, [HOPPER], None),
        ({"flashinfer_python": None}, [HOPPER], "gated_delta_net_prefill_is_there"),
        ({"flashinfer_python": None}, [AMPERE], None),
        (
            {"flashinfer_python": None},
            [HOPPER, {"rollout": {"engine_args": {"gdn_prefill_backend": "triton"}}}],
            None,
        ),
    ],
)
def test_each_pair(
    tmp_path: Path, changes: dict[str, str | None], overlays: list[dict[str, Any]], rule: str | None
) -> None:
    assert found(tmp_path, changes, *overlays) == ({rule} if rule else set())


def test_nothing_is_said_on_a_cpu(tmp_path: Path) -> None:
    changes: dict[str, str | None] = {
        "transformer_engine_cu13": "2.16.0",
        "nvidia_cudnn_cu12": "9.14.0",
        "fla_core": "0.6.0",
    }
    assert found(tmp_path, changes, {"cluster": {"device": "cpu", "gpu": "H200"}}) == set()


# --- probe.json ---


def probed(
    here: Path, monkeypatch: pytest.MonkeyPatch, node: Any, changes: dict[str, str | None]
) -> set[str]:
    """The faults with `cluster.probe`, where a probe of this configuration says `node`."""
    monkeypatch.chdir(here)
    versions = {name: version for name, version in {**SEEN, **changes}.items() if version is not None}
    overlay = {"cluster": {"environment": environment(here, **versions), "probe": True}}
    settings = load_experiments(config(overlay))["main"]
    path = probe_path(settings)
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(node if isinstance(node, str) else json.dumps({"nodes": [node]}))
    return found(here, changes, overlay)


def test_a_node_knows_better_than_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node: dict[str, Any] = {
        "versions": {"fla-core": "0.6.0", "triton": "3.6.0"},
        "gpus": [{"name": "H200", "capability": "9.0"}],
    }
    changes: dict[str, str | None] = {"tilelang": "0.1.9"}  # for the metadata alone
    assert probed(tmp_path, monkeypatch, node, changes) == {"fla_trains_on_hopper"}
    node["versions"]["tilelang"] = "0.1.9"
    assert probed(tmp_path, monkeypatch, node, changes) == set()


def test_two_cudnn_on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["/env/nvidia/cudnn/lib/libcudnn.so.9", "/usr/lib/libcudnn.so.9.14.0"]
    assert probed(tmp_path, monkeypatch, {"libraries": {"libcudnn": files}}, {}) == {"one_cudnn_is_found"}
    assert probed(tmp_path, monkeypatch, {"libraries": {"libcudnn": files[:1]}}, {}) == set()


@pytest.mark.parametrize(
    "node",
    [{}, None, "{", "[]", {"versions": None, "gpus": [None], "libraries": {"libcudnn": 1}}, {"gpus": []}],
)
def test_what_a_probe_does_not_say_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Any
) -> None:
    assert probed(tmp_path, monkeypatch, node, {"fla_core": "0.6.0"}) == set()
    assert node_of(node) == Node()


def test_arguments_of_the_engine_are_read_from_its_source(tmp_path: Path) -> None:
    prefix = environment(tmp_path, vllm="0.23.0")
    names = {"model", "max_num_seqs", "enable_prefix_caching", "gdn_prefill_backend", "enable_log_requests"}
    assert engine_arguments(prefix) == names
    assert engine_arguments(str(tmp_path / "elsewhere")) == frozenset()
    refused = {"rollout": {"engine_args": {"neither": 1, "no_argument": 1, "enable_log_requests": True}}}
    _, report = check_raw(config(refused, {"cluster": {"environment": prefix}}))
    keys = {problem.key for problem in report.problems if problem.id == "engine_args_exist"}
    assert keys == {"rollout.engine_args.neither", "rollout.engine_args.no_argument"}
