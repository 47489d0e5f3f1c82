"""docs/measurements.md is what benchmarks/gpu/tables.py makes of the results; configurations are legal."""

import sys
from pathlib import Path

import pytest
import yaml
from grpoflow.config import load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.plan.batch import resolve_batch
from grpoflow.plan.inputs import batch_spec
from grpoflow.plan.layout import LayoutSpec

ROOT = Path(__file__).parents[2]
GPU = ROOT / "benchmarks/gpu"
sys.path.insert(0, str(GPU))

import tables  # noqa: E402


def test_the_page_matches_the_results() -> None:
    assert tables.PAGE.read_text(encoding="utf-8") == tables.page()


def test_a_failed_case_is_not_among_the_measured_ones() -> None:
    failed = [case["case"] for case in tables.cases() if not tables.ran(case)]
    assert failed, "the results hold at least one case that did not end well"
    assert not [name for name in failed if f"| {name} |" in tables.memory()]
    assert all(f"| {name} |" in tables.failed() for name in failed)


@pytest.mark.parametrize("model", ["tiny", "0.8b"])
@pytest.mark.parametrize("place", ["server", "colocate"])
def test_configurations_are_legal(model: str, place: str) -> None:
    raw = read_yaml(ROOT / "config/config.yaml")
    for name in (model, place):
        raw = merge(raw, read_yaml(GPU / f"configs/{name}.yaml"))
    assert load_experiments(raw)[place].rollout.mode == place


def test_cases_are_legal() -> None:
    cases = yaml.safe_load((GPU / "cases.yaml").read_text())
    for name, case in cases.items():
        raw = merge(read_yaml(ROOT / "config/config.yaml"), read_yaml(GPU / "configs/case.yaml"))
        config = load_experiments(merge(raw, case["config"]))["main"]
        shape = case["shape"]
        assert (ROOT / f"tests/data/configs/qwen3.5-{shape}.json").is_file() or shape.startswith("demo-"), (
            name
        )
        assert config.sft is not None
        if case["command"] == "grpo" and config.trainer.backend == "megatron":
            resolve_batch(batch_spec(config), LayoutSpec(case["gpus"]))
