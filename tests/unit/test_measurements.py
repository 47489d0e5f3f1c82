"""docs/measurements.md is what benchmarks/gpu/tables.py makes of the results; configurations are legal."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from grpoflow.cli import main as cli
from grpoflow.config import load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.plan.hardware import GIB
from grpoflow.plan.inputs import architecture_of
from grpoflow.plan.memory import host_bytes_per_node
from grpoflow.plan.storage import checkpoint_bytes
from grpoflow.preflight.estimate import batch_of, disk
from grpoflow.preflight.subject import Subject

ROOT = Path(__file__).parents[2]
GPU = ROOT / "benchmarks/gpu"
sys.path.insert(0, str(GPU))

import predict  # noqa: E402
import read_case  # noqa: E402
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


def written(name: str, directory: Path) -> tuple[dict[str, Any], Path]:
    """A case, and its model directory with nothing but config.json."""
    case = predict.cases()[name]
    (directory / "config.json").write_text(predict.shape_file(case["shape"]).read_text())
    return case, directory


@pytest.mark.parametrize("name", predict.cases())
def test_cases_are_legal(name: str, tmp_path: Path) -> None:
    case, model = written(name, tmp_path)
    config = predict.configuration(case, model)
    ranks, engine = predict.plan_of(case, config)
    assert ranks
    if case["command"] == "grpo":
        assert engine is not None
        assert engine.problems == ()
        assert batch_of(Subject("main", config)) is not None


EIGHT = [name for name in predict.cases() if name.startswith(tables.EIGHT)]
GPU_MEMORY, HOST_MEMORY, DISK = 139 * GIB, 560 * GIB, 235 * GIB
"""Of a machine with eight H200."""


@pytest.mark.parametrize("name", EIGHT)
def test_cases_of_eight_gpus_pass_and_fit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, model = written(name, tmp_path)
    file = tmp_path / "case.yaml"
    file.write_text(yaml.safe_dump(predict.raw_configuration(case, model)))
    assert cli(["preflight", str(file)]) == 0
    assert cli(["plan", str(file)]) == 0
    assert "memory per GPU" in capsys.readouterr().out
    config = predict.configuration(case, model)
    ranks, _ = predict.plan_of(case, config)
    assert max(rank.peak for rank in ranks) < 0.9 * GPU_MEMORY
    assert host_bytes_per_node(ranks, case["gpus"]) < 0.8 * HOST_MEMORY
    storage = disk(Subject("main", config))
    weights = checkpoint_bytes(architecture_of(config), save_optimizer=False)
    assert storage is not None
    assert weights + storage.per_checkpoint < 0.9 * DISK


def test_eight_gpus_are_run_in_the_order_of_the_cases() -> None:
    script = (GPU / "eight.sh").read_text()
    assert re.findall(r"^ *(eight-[a-z0-9-]+) +[0-9]+$", script, re.M) == EIGHT


def test_null_takes_an_argument_away(tmp_path: Path) -> None:
    case, model = written("eight-35b-zero3", tmp_path)
    args = predict.configuration(case, model).trainer.args
    assert args["experts_impl"] == "grouped_mm"
    assert "attention_backend" not in args


# --- what is read off a run ---

# rank 0 of a run of two steps that saves after the second; seconds, begun at 100
PHASES = [
    ("update", 100.0, 2.0),
    ("load", 102.0, 8.0),
    ("update", 110.0, 20.0),
    ("rollout", 130.0, 0.5),
    ("sync", 130.5, 6.0),
    ("rollout", 136.5, 30.0),
    ("logps", 166.5, 3.0),
    ("update", 169.5, 10.0),
    ("sync", 179.5, 2.0),
    ("rollout", 181.5, 28.0),
    ("update", 209.5, 9.0),
    ("save", 218.5, 40.0),
    ("export", 258.5, 15.0),
    ("save", 273.5, 1.0),
    ("sync", 274.5, 4.0),
]


def test_times_of_a_run(tmp_path: Path) -> None:
    rows = [{"phase": phase, "begun": begun, "seconds": seconds} for phase, begun, seconds in PHASES]
    log = tmp_path / "phases"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"phase": "upd')
    assert read_case.times(log, started=98.0) == {
        "bring_up": 32.5,
        "first_sync": 6.0,
        "sync": 3.0,
        "load": 8.0,
        "export": 15.0,
        "save": 56.0,
    }


def test_times_of_a_recorded_run() -> None:
    """Rank 1 of three steps of the demo mixture of experts with EP 2, on CPUs; times from the first line."""
    log = ROOT / "tests/data/gpu/megatron_moe.phases"
    found = read_case.times(log, started=-4.0)
    rows = read_case.lines_of(log)
    assert found.keys() == {"bring_up", "first_sync", "sync", "load", "save", "export"}
    assert found["bring_up"] == pytest.approx(4 + rows[8]["begun"], abs=0.01)
    assert found["export"] < found["save"]
    split = read_case.seconds_per_step(log)
    assert split["steps"] == 1
    assert split.keys() >= {"sync", "rollout", "logps", "update", "save", "export"}


def test_saving_is_no_part_of_a_step(recorded: dict[str, Any]) -> None:
    saved = recorded | {"seconds_per_step": recorded["seconds_per_step"] | {"save": 50.0, "export": 5.0}}
    assert tables.speed_row(saved) == tables.speed_row(recorded)


def test_a_run_that_never_synced_has_no_bring_up(tmp_path: Path) -> None:
    log = tmp_path / "phases"
    log.write_text('{"phase": "load", "begun": 1.0, "seconds": 2.5}\n')
    assert read_case.times(log, started=0.0) == {"load": 2.5}


def test_sizes_of_checkpoints(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint-4"
    (saved / "iter_0000004").mkdir(parents=True)
    (saved / "model-00001-of-00001.safetensors").write_bytes(bytes(70))
    (saved / "iter_0000004/__0_0.distcp").write_bytes(bytes(500))
    (tmp_path / "last-checkpoint").symlink_to(saved)
    assert read_case.checkpoints(tmp_path) == [{"name": "checkpoint-4", "hf": 70, "rest": 500}]


@pytest.fixture
def recorded() -> dict[str, Any]:
    """A recorded result of two GPUs, with what later runs say too."""
    found: dict[str, Any] = tables.read(tables.RESULTS / "cases/grpo-0.8b-server.json")
    return found | {
        "times": {"bring_up": 90.2, "load": 3.1, "first_sync": 1.2, "sync": 0.4, "save": 12.0, "export": 2.0},
        "checkpoints": [{"name": "checkpoint-4", "hf": 2 * GIB, "rest": 9 * GIB}],
        "model_seconds": None,
        "host_memory_mib": {"before": 10240, "peak": 15360},
        "resumed": {"times": {"bring_up": 95.0, "load": 20.0}},
    }


def test_speed_of_a_recorded_run(recorded: dict[str, Any]) -> None:
    """32 x (0.98 x 1792 + 251) tokens in 1.554 + 0.002 + 11.984 + 0.153 + 3.705 s on two GPUs."""
    row = tables.speed_row(recorded)
    assert row[:7] == ["grpo-0.8b-server", "2", "0.2", "12.0", "1.6", "3.7", "17.4"]
    assert float(row[7].replace(",", "")) == pytest.approx(32 * 2007 / 17.398 / 2, rel=0.01)
    # 6 x 0.75 B parameters of text and the output layer, at the least
    tokens_per_second = 32 * 2007 / 3.705
    assert float(row[8].rstrip("%")) / 100 == pytest.approx(
        6.2 * 0.75e9 * tokens_per_second / 989.4e12, rel=0.15
    )


def test_files_and_memory_of_a_recorded_run(recorded: dict[str, Any]) -> None:
    row = tables.files_row(recorded)
    assert row[1:6] == ["there already", "90", "3", "1", "0"]
    assert row[7:] == ["2.0 + 9.0", "12", "2", "95", "20"]
    ranks = recorded["allocator"]
    recorded["allocator"] = [ranks[0], ranks[0] | {"max_allocated": ranks[0]["max_allocated"] + GIB}]
    assert tables.ranks_row(recorded)[2:] == ["38.5 to 39.5", "51.9", "56.8", "0.0", "5.0"]


def test_what_a_run_did_not_reach_is_not_taken(recorded: dict[str, Any]) -> None:
    recorded |= {"times": {}, "checkpoints": [], "seconds_per_step": {"median": None}, "allocator": []}
    del recorded["resumed"]
    assert set(tables.speed_row(recorded)[2:]) == {"not taken"}
    assert set(tables.files_row(recorded)[7:]) == {"not taken"}
    assert set(tables.ranks_row(recorded)[2:]) == {"not taken"}
