"""Over how many GPUs a checkpoint is converted."""

from pathlib import Path
from typing import Any

import pytest
from grpoflow.config import load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.plan.conversion import conversion_of
from grpoflow.preflight.report import Report
from grpoflow.preflight.subject import Subject
from grpoflow.stages.dag import Dag
from grpoflow.stages.plan import plan_document

ROOT = Path(__file__).parents[2]
SIZES = {
    "0.8B": (1, 1, None),
    "9B": (1, 1, None),
    "27B": (1, 8, {"tensor": 8}),
    "35B-A3B": (1, 8, {"expert": 8}),
    "122B-A10B": (1, 8, {"expert": 8}),
    # over two nodes a rank would hold 1/16 of the experts and all of the rest: more than it has room for
    "397B-A17B": (3, 8, {"pipeline": 3, "expert": 8}),
}


def raw(tmp_path: Path, size: str, **overlay: Any) -> dict[str, Any]:
    model = tmp_path / size
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text((ROOT / f"tests/data/configs/qwen3.5-{size}.json").read_text())
    here = {
        "model": {"path": str(model), "torch_dtype": "bfloat16"},
        "cluster": {"device": "cuda", "gpus_per_node": 8},
        "sft": None,
    }
    found: dict[str, Any] = merge(read_yaml(ROOT / "config/config.yaml"), here)
    return merge(found, overlay)


@pytest.mark.parametrize("size", SIZES)
def test_the_fewest_gpus_that_hold_the_weights(tmp_path: Path, size: str) -> None:
    nodes, per_node, parallel = SIZES[size]
    found = conversion_of(load_experiments(raw(tmp_path, size))["main"])
    assert (found.nodes, found.nproc_per_node) == (nodes, per_node)
    given = found.parallel and {name: n for name, n in found.parallel.model_dump().items() if n > 1}
    assert given == parallel


def test_larger_gpus_take_fewer_nodes(tmp_path: Path) -> None:
    config = load_experiments(raw(tmp_path, "397B-A17B", cluster={"gpu": "H200"}))["main"]
    assert conversion_of(config).nodes == 2


def test_one_process_on_a_cpu_and_for_a_model_that_is_not_there(tmp_path: Path) -> None:
    for overlay in ({"cluster": {"device": "cpu"}}, {"model": {"path": str(tmp_path / "absent")}}):
        config = load_experiments(raw(tmp_path, "397B-A17B", **overlay))["main"]
        assert conversion_of(config).parallel is None


def test_rules_that_need_several_nodes_are_drivers(tmp_path: Path) -> None:
    assert Dag(raw(tmp_path, "122B-A10B")).wide_rules == set()
    assert Dag(raw(tmp_path, "397B-A17B")).wide_rules == {"convert_to_mcore", "export_hf"}
    adapter = Dag(raw(tmp_path, "397B-A17B", trainer={"tuner": "lora"}))
    assert adapter.wide_rules == {"convert_to_mcore"}
    split = {"mode": "colocate", "tensor_parallel_size": 16}
    wide = Dag(raw(tmp_path, "122B-A10B", rollout=split, evaluate={"engine": "vllm"}))
    assert wide.wide_rules == {"evaluate"}
    sft = read_yaml(ROOT / "config/config.yaml")["sft"]
    assert Dag(raw(tmp_path, "9B", sft={**sft, "nodes": 2})).wide_rules == {"sft"}


def test_the_plan_shows_every_node(tmp_path: Path) -> None:
    config = load_experiments(raw(tmp_path, "397B-A17B"))["main"]
    document = plan_document(Subject("main", config), Report(()))
    (stage,) = (stage for stage in document["stages"] if stage["name"] == "convert_to_mcore")
    assert (stage["nodes"], stage["gpus_per_node"]) == (3, 8)
    assert [command["env"]["NODE_RANK"] for command in stage["commands"]] == ["0", "0", "1", "1", "2", "2"]
    assert {command["env"]["MASTER_ADDR"] for command in stage["commands"]} == {"node0"}
    assert "--expert_model_parallel_size" in stage["argv"]
