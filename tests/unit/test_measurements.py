"""docs/measurements.md is what benchmarks/gpu/tables.py makes of the results; configurations are legal."""

import json
import subprocess
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


ENGINES = [case for case in tables.cases(tables.ONE) if len(tables.said(case)) == len(tables.SAYS)]


@pytest.mark.parametrize("case", ENGINES, ids=lambda case: case["case"])
def test_the_plan_lays_out_the_kv_cache_as_vllm_said_it_did(case: dict[str, Any]) -> None:
    _, weights, _, _, block, tokens, _ = tables.engine_row(case)
    for planned, logged in (cell.replace(",", "").split(" / ") for cell in (weights, block, tokens)):
        assert float(planned) == pytest.approx(float(logged), rel=0.05)
    planned, logged = tokens.split(" / ")
    assert planned == logged


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
    """A case, and its model directory with nothing but config.json, tied as make_model.py writes it."""
    case = predict.cases()[name]
    shape = json.loads(predict.shape_file(case["shape"]).read_text())
    shape["text_config"]["tie_word_embeddings"] = shape["tie_word_embeddings"]
    (directory / "config.json").write_text(json.dumps(shape))
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


def listed(name: str) -> list[list[str]]:
    """The lines of a list of run_cases.sh: case, seconds, and the suffix of its environment if it has one."""
    return [line.split() for line in (GPU / name).read_text().splitlines()]


def test_eight_gpus_are_run_in_the_order_of_the_cases() -> None:
    assert [line[0] for line in listed("eight.list")] == EIGHT


SPEED = [name for name in predict.cases() if name.startswith((tables.SPEED, tables.ONE, tables.FLA))]
LISTS = ("speed.list", "one.list", "fla.list")


def test_every_case_of_speed_is_listed_and_has_a_row() -> None:
    assert sorted(line[0] for name in LISTS for line in listed(name)) == sorted(SPEED)
    compared = {name for names in tables.COMPARED.values() for name in names}
    assert compared | set(tables.VERSIONS) == set(SPEED)


def test_cases_of_speed_have_the_environment_that_they_need() -> None:
    for name, _, *suffix in (line for each in LISTS for line in listed(each)):
        case = predict.cases()[name]["config"]
        versions = {"fla-0.4.1": ["fla041"], "fla-0.6.0": ["fla060"], "fla-none": ["nofla"]}
        sharded = ["deepspeed"] if "deepspeed" in case.get("trainer", {}) else []
        assert suffix == versions.get(name, sharded)


@pytest.mark.parametrize("name", SPEED)
def test_cases_of_speed_pass_and_fit(name: str, tmp_path: Path) -> None:
    case, model = written(name, tmp_path)
    file = tmp_path / "case.yaml"
    file.write_text(yaml.safe_dump(predict.raw_configuration(case, model)))
    assert cli(["preflight", str(file)]) == 0
    config = predict.configuration(case, model)
    ranks, engine = predict.plan_of(case, config)
    peaks = [rank.peak for rank in (*ranks, *([engine.rank] if engine else []))]
    assert max(peaks) < 0.9 * GPU_MEMORY
    assert host_bytes_per_node(ranks, case["gpus"]) < 0.8 * 256 * GIB
    if case["command"] == "grpo":
        # the run is ended before it saves, and after at least one rollout between the first and the last
        steps, per_rollout = case["until"], config.trainer.steps_per_generation
        assert 2 * per_rollout < steps < config.trainer.train_steps


def test_cases_are_run_once_in_the_environment_of_their_line(tmp_path: Path) -> None:
    for suffix in ("", "-other"):
        prefix = tmp_path / f"env{suffix}"
        (prefix / "bin").mkdir(parents=True)
        (prefix / "activate.sh").write_text("")
        (prefix / "machine.yaml").write_text("{}")
        python = prefix / "bin/python"
        # run_case.py PREFIX CASE RESULT SECONDS
        python.write_text(f'#!/bin/sh\necho "env{suffix} $5" > "$4"\n')
        python.chmod(0o755)
    cases = tmp_path / "some.list"
    cases.write_text("one 10\ntwo 20 other\nthree 30 missing\nfour 40\nfive 50\n")
    results = tmp_path / "results"
    results.mkdir()
    (results / "one.json").write_text("there before")
    script = [str(GPU / "run_cases.sh"), str(tmp_path / "env"), str(results), str(cases)]
    subprocess.run([*script, "one", "two", "three", "four"], check=False, cwd=tmp_path)
    made = {path.stem: path.read_text().strip() for path in results.glob("*.json")}
    assert made == {"one": "there before", "two": "env-other 20", "four": "env 40"}
    assert "three left out" in (results / "some.log").read_text()
    subprocess.run(script, check=False, cwd=tmp_path)
    assert (results / "five.json").read_text() == "env 50\n"


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


def test_seconds_of_every_rollout_and_of_a_step_of_several(tmp_path: Path) -> None:
    """Three rollouts, of which one is between the first and the last sync; two steps of each."""
    log = tmp_path / "phases"
    stretches = [("update", 50.0)]
    for number in (1.0, 2.0, 3.0):
        stretches += [("sync", number), ("rollout", 10 * number), ("update", 3 * number), ("update", number)]
    log.write_text("".join(json.dumps({"phase": name, "seconds": s}) + "\n" for name, s in stretches))
    assert read_case.seconds_by_phase(log) == [
        {"sync": 1.0, "rollout": 10.0, "update": 4.0},
        {"sync": 2.0, "rollout": 20.0, "update": 8.0},
    ]
    assert read_case.seconds_per_step(log, 2) == {"steps": 2, "sync": 1.0, "rollout": 10.0, "update": 4.0}


def test_seconds_of_every_step_of_sft(tmp_path: Path) -> None:
    log = tmp_path / "phases"
    rows = [("rest", 9.0), ("step", 160.0), ("rest", 0.1), ("step", 0.5), ("rest", 0.1)]
    log.write_text("".join(json.dumps({"phase": name, "seconds": s}) + "\n" for name, s in rows))
    assert read_case.step_seconds(log) == [160.0, 0.5]
    assert read_case.step_seconds(tmp_path / "absent") == []


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
    assert row[:8] == ["grpo-0.8b-server", "2", "0.2", "12.0", "1.6", "3.7", "0.0", "17.4"]
    assert float(row[8].replace(",", "")) == pytest.approx(32 * 2007 / 17.398 / 2, rel=0.01)
    # 6 x 0.75 B parameters of text and the output layer, at the least
    tokens_per_second = 32 * 2007 / 3.705
    assert float(row[9].rstrip("%")) / 100 == pytest.approx(
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


# --- comparisons of speed ---


def result(name: str, **facts: Any) -> dict[str, Any]:
    """What run_case.py writes of a case, as far as the tables of speed read it."""
    case = predict.cases()[name]
    shape = json.loads(predict.shape_file(case["shape"]).read_text())
    return {
        "case": name,
        **{key: case[key] for key in ("command", "shape", "gpus")},
        "overlay": case["config"],
        "model_config": shape,
        "rc": 0,
        "steps": [{"completions/mean_length": 512.0}] * 5,
        "row_tokens": [512] * 5,
        "allocator": [{}] * case["gpus"],
        "versions": {"torch": "2.11.0", "fla-core": "0.4.2"},
        "gpu": "NVIDIA H200",
        "driver": "1",
        "machine": ["GPU-a", "GPU-b"],
        "other_processes": 0,
        **facts,
    }


def per_step(**seconds: float) -> dict[str, float | None]:
    return {"median": None, "steps": 3, "save": 50.0, "reward": 0.5, **seconds}


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write results; returns the rows of the speed section by their first cell, in the order of the page."""
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    (tmp_path / "cases").mkdir()

    def rows_of(*results: dict[str, Any]) -> list[list[str]]:
        for number, each in enumerate(results):
            (tmp_path / "cases" / f"{each['case']}.{number}.json").write_text(json.dumps(each))
        lines = [line for line in tables.speed().splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    return rows_of


COLOCATE = result(
    "speed-colocate",
    seconds_per_step=per_step(sync=0.5, rollout=10.0, logps=1.0, update=4.0),
)
ZERO3 = result(
    "speed-zero3",
    seconds_per_step=per_step(sync=1.5, rollout=10.0, logps=2.0, update=8.0, prepare=2.0),
)


def test_speed_is_split_and_compared_with_the_first_row(taken: Any) -> None:
    """16 s of a step against 24 s, 4 s of the update against 8; 128 x (512 + 512) tokens on two GPUs."""
    rows = taken(COLOCATE, ZERO3)
    head, megatron, zero3, zero2, ddp = rows[0], *rows[2:6]
    assert megatron[:9] == ["speed-colocate", "3", "0.5", "10.0", "1.0", "4.0", "0.5", "16.0", "4,096"]
    assert zero3[:9] == ["speed-zero3", "3", "1.5", "10.0", "2.0", "8.0", "2.5", "24.0", "2,731"]
    assert (megatron[-2:], zero3[-2:]) == (["1.00", "1.00"], ["1.50", "2.00"])
    assert head[-2:] == ["step over first row", "update over first row"]
    mfu = [float(row[head.index("MFU of the update")].rstrip("%")) for row in (megatron, zero3)]
    assert mfu[0] == pytest.approx(2 * mfu[1], rel=0.02)
    assert mfu[0] / 100 == pytest.approx(6.2 * 0.75e9 * 128 * 1024 / 4 / 2 / 989.4e12, rel=0.15)
    assert zero2 == ["speed-zero2", "not taken", *[""] * 10]
    assert ddp[1] == "not taken"


def test_every_row_of_speed_is_not_taken_without_results(taken: Any) -> None:
    rows = [row for row in taken() if row[0] in SPEED]
    assert {row[0] for row in rows} == set(SPEED)
    assert all(row[1] == "not taken" and not any(row[2:]) for row in rows)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"machine": ["GPU-c", "GPU-d"]}, ["another machine", "another machine"]),
        ({"other_processes": 1}, ["1.50, not alone", "2.00, not alone"]),
        ({"seconds_per_step": {"median": None}}, ["not taken", "not taken"]),
    ],
)
def test_speed_of_other_conditions_is_marked(taken: Any, facts: dict[str, Any], why: list[str]) -> None:
    zero3 = taken(COLOCATE, ZERO3 | facts)[3]
    assert zero3[-2:] == why


def test_a_row_is_compared_with_the_first_row_of_its_own_machine(taken: Any) -> None:
    """A case that was repeated on another machine is a row of its own, before the others of that machine."""
    later = {"machine": ["GPU-c", "GPU-d"]}
    again = COLOCATE | later | {"seconds_per_step": per_step(rollout=8.0, update=2.0)}
    rows = taken(COLOCATE, ZERO3 | later, again)[2:5]
    assert [row[0] for row in rows] == ["speed-colocate", "speed-colocate", "speed-zero3"]
    assert [row[-2:] for row in rows] == [["1.00", "1.00"], ["1.00", "1.00"], ["2.29", "4.00"]]


def test_first_and_later_passes_of_fla(taken: Any) -> None:
    """The first row is 0.4.2; 10,000 tokens in each pass of five rows."""
    known = {"row_tokens": [1000, 1500, 2000, 2500, 3000]}
    pinned = result("fla-0.4.2", step_seconds=[96.0, 1.0, 1.0, 1.0, 1.0] + [0.5] * 5 + [0.3] * 5, **known)
    older = result("fla-0.4.1", step_seconds=[100.0, 25.0, 25.0, 25.0, 25.0] + [0.2] * 10 + [9.0], **known)
    older["versions"] = {"fla-core": "0.4.1"}
    short = result("fla-none", step_seconds=[5.0] * 9, **known)
    rows = taken(pinned, older, short)[-4:]
    assert rows[0][:6] == ["fla-0.4.2", "0.4.2", "96.0", "4.00", "2.00", "5,000"]
    assert rows[1][:6] == ["fla-0.4.1", "0.4.1", "100.0", "100.00", "1.00", "10,000"]
    assert [row[-2:] for row in rows[:2]] == [["1.00", "1.00"], ["25.00", "0.50"]]
    assert [row[1] for row in rows[2:]] == ["not taken", "not taken"]
    mfu = [float(row[6].rstrip("%")) for row in rows[:2]]
    assert mfu[1] == pytest.approx(2 * mfu[0], rel=0.02)


def test_results_of_speed_are_no_rows_of_the_memory_table(taken: Any) -> None:
    taken(COLOCATE)
    assert tables.cases() == []
    assert [case["case"] for case in tables.cases(tables.SPEED)] == ["speed-colocate"]
