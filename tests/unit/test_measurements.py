"""docs/measurements.md is what benchmarks/gpu/tables.py makes of the results; configurations are legal."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from grpoflow.config import load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.models.architecture import Architecture
from grpoflow.plan.batch import resolve_batch, resolve_swift_batch
from grpoflow.plan.inputs import batch_spec, swift_batch_spec
from grpoflow.plan.layout import LayoutSpec

ROOT = Path(__file__).parents[2]
GPU = ROOT / "benchmarks/gpu"
sys.path.insert(0, str(GPU))

import predict  # noqa: E402
import tables  # noqa: E402


def test_the_page_matches_the_results() -> None:
    assert tables.PAGE.read_text(encoding="utf-8") == tables.page()


def test_a_case_that_did_not_end_well_is_named() -> None:
    failed = [case["case"] for case in tables.cases() if not tables.ran(case)]
    assert failed, "the results hold at least one case that did not end well"
    assert all(f"| {name} |" in tables.failed() for name in failed)


MEASURED = [case for case in tables.cases() if tables.measured(case)]


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: case["case"])
def test_the_plan_is_within_a_twentieth_of_the_measured_peak(case: dict[str, Any]) -> None:
    assert tables.predicted_peak(case) == pytest.approx(tables.peak_of(case), rel=0.05)


@pytest.mark.parametrize(
    "overlays",
    [
        ("tiny", "server"),
        ("tiny", "colocate"),
        ("tiny", "tiny-lora", "colocate"),
        ("tiny", "tiny-moe", "colocate"),
        ("tiny-swift", "colocate"),
        ("0.8b", "server"),
        ("0.8b", "colocate"),
    ],
    ids="+".join,
)
def test_configurations_are_legal(overlays: tuple[str, ...]) -> None:
    raw = read_yaml(ROOT / "config/config.yaml")
    for name in overlays:
        raw = merge(raw, read_yaml(GPU / f"configs/{name}.yaml"))
    assert load_experiments(raw)[overlays[-1]].rollout.mode == overlays[-1]


@pytest.mark.parametrize("name", predict.cases())
def test_cases_are_legal(name: str, tmp_path: Path) -> None:
    case = predict.cases()[name]
    known = ROOT / f"tests/data/configs/qwen3.5-{case['shape']}.json"
    shape = GPU / "configs/moe.json" if case["shape"] == "moe" else known
    (tmp_path / "config.json").write_text(shape.read_text())
    config = predict.configuration(case, tmp_path)
    arch = Architecture.from_config(json.loads(shape.read_text()))
    ranks, engine = predict.plan_of(case, config)
    assert ranks
    assert arch.layers
    if case["command"] == "grpo":
        assert engine is not None
        assert engine.problems == ()
        trainers = case["gpus"] - (config.rollout.mode == "server")
        if config.trainer.backend == "megatron":
            resolve_batch(batch_spec(config), LayoutSpec(trainers))
        else:
            batch = swift_batch_spec(config, trainers)
            assert batch is not None
            resolve_swift_batch(batch)
