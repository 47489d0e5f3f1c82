"""Public benchmarks: in the DAG only when configured, one command per model, results of the same rows.

tests/data/evalscope holds reports that EvalScope 1.14.1 wrote in a run of tests/e2e/test_outcome.py,
of the model before GRPO, with the description of the data set cut.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from configurations import config as raw_config
from configurations import environment
from grpoflow.commands.base import Command
from grpoflow.commands.benchmark import benchmark
from grpoflow.config import Config, load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.facts.arguments import load_catalogue
from grpoflow.plan.inference import inference_of
from grpoflow.preflight import check_raw
from grpoflow.preflight.modelled import BENCHMARKS, modelled_key
from grpoflow.stages import report
from grpoflow.stages.base import Stage, StageFailed
from grpoflow.stages.benchmarks import benchmarks, read_reports, side_by_side
from grpoflow.stages.dag import Dag
from grpoflow.stages.export import _about_benchmarks

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "tests/data/evalscope"
DATASETS = ["general_mcq", "general_qa"]
OVERLAY: dict[str, Any] = {"evaluate": {"benchmarks": {"datasets": DATASETS, "limit": 4}}}
MAIN: Any = SimpleNamespace(experiment="main")


def raw(*overlays: dict[str, Any]) -> dict[str, Any]:
    merged: Any = read_yaml(ROOT / "config/config.yaml")
    for overlay in overlays:
        merged = merge(merged, overlay)
    return dict(merged)


def configured(*overlays: dict[str, Any]) -> Config:
    return load_experiments(raw(OVERLAY, *overlays))["main"]


def argument(command: Command, name: str) -> str:
    return command.argv[command.argv.index(f"--{name}") + 1]


def command_of(config: Config, copies: int = 1) -> Command:
    assert config.evaluate.benchmarks is not None
    return benchmark(config, config.evaluate.benchmarks, Path("m"), Path("o"), 8000, copies)


# --- the DAG ---


def test_the_rule_is_in_the_dag_only_when_it_is_configured() -> None:
    without, with_it = Dag(raw()), Dag(raw(OVERLAY))
    assert without.benchmarks(MAIN) == []
    assert with_it.benchmarks(MAIN) == "results/main/benchmarks/manifest.json"
    assert set(with_it.targets(MAIN)) - set(without.targets(MAIN)) == {with_it.benchmarks(MAIN)}


def test_benchmarks_are_no_settings_of_evaluate_and_no_new_run() -> None:
    without, with_it = Dag(raw()), Dag(raw(OVERLAY))
    assert without.evaluate_keys(MAIN) == with_it.evaluate_keys(MAIN)
    assert without.run_hash(MAIN) == with_it.run_hash(MAIN)
    more = Dag(raw(OVERLAY, {"evaluate": {"benchmarks": {"limit": 5}}}))
    assert with_it.benchmark_keys(MAIN) != more.benchmark_keys(MAIN)


def test_keys_of_a_later_release_re_run_nothing() -> None:
    """What Snakemake stored of results that an earlier release made."""
    assert Dag(raw()).evaluate_keys(MAIN).keys() == {
        *("engine", "samples", "checkpoints", "pass_reward", "batch_size", "seed", "confidence")
    }
    assert Dag(raw()).export_keys(MAIN) == {"checkpoint": "last", "metric": "reward"}


def test_another_exported_checkpoint_is_evaluated_too() -> None:
    dag, other = Dag(raw(OVERLAY)), Dag(raw(OVERLAY, {"export": {"checkpoint": 10}}))
    assert dag.evaluate_keys(MAIN) != other.evaluate_keys(MAIN)
    assert dag.benchmark_keys(MAIN) != other.benchmark_keys(MAIN)


# --- the command ---


def test_arguments_given_are_added_and_results_stay_where_they_are_read() -> None:
    given = {
        "eval_generation_config": {"max_tokens": 512},
        "extra_eval_args": '{"repeats": 2, "no_timestamp": false}',
        "eval_num_proc": 4,
    }
    command = command_of(configured({"evaluate": {"benchmarks": {"args": given}}}))
    assert json.loads(argument(command, "eval_generation_config")) == {"temperature": 0.0, "max_tokens": 512}
    assert json.loads(argument(command, "extra_eval_args")) == {"repeats": 2, "no_timestamp": True}
    assert argument(command, "eval_num_proc") == "4"
    assert argument(command, "eval_limit") == "4"
    assert command.argv.count("--eval_generation_config") == 1


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_every_argument_is_known(engine: str) -> None:
    config = configured({"evaluate": {"engine": engine}, "cluster": {"device": "cuda", "gpus_per_node": 8}})
    command = command_of(config, inference_of(config).copies)
    assert load_catalogue("4.6.0").check_argv("swift eval", command.argv[2:]) == []
    assert ("--vllm_data_parallel_size" in command.argv) == (engine == "vllm")


def test_what_the_stage_reads_cannot_be_moved() -> None:
    assert modelled_key("eval_output_dir", BENCHMARKS) == "the workflow"
    assert modelled_key("eval_backend", BENCHMARKS) == "the workflow"
    assert modelled_key("eval_limit", BENCHMARKS) == "evaluate.benchmarks.limit"
    assert modelled_key("model", BENCHMARKS) == "model.path"
    assert modelled_key("vllm_tensor_parallel_size", BENCHMARKS) == "rollout.tensor_parallel_size"
    # a benchmark has its own lengths and sampling
    assert modelled_key("max_length", BENCHMARKS) == modelled_key("vllm_max_model_len", BENCHMARKS) == ""
    assert modelled_key("temperature", BENCHMARKS).endswith("eval_generation_config")


# --- results ---


def test_reports_of_evalscope() -> None:
    found = read_reports(REPORTS, DATASETS)
    assert found["general_mcq", "accuracy mean"] == {"score": 0.0, "rows": 4, "main": True}
    rouge = {metric: value for (dataset, metric), value in found.items() if dataset == "general_qa"}
    main = [metric for metric, value in rouge.items() if value["main"]]
    assert main == ["rouge mean statistic=recall variant=l"]
    assert len(rouge) > 10


def test_reports_of_an_earlier_evalscope(tmp_path: Path) -> None:
    metrics = [{"name": "AverageAccuracy", "num": 7, "score": 0.5}]
    (tmp_path / "x.json").write_text(json.dumps({"dataset_name": "gsm8k", "metrics": metrics}))
    found = read_reports(tmp_path, ["GSM8K"])
    assert found == {("gsm8k", "AverageAccuracy"): {"score": 0.5, "rows": 7, "main": True}}


def test_a_missing_data_set_is_named() -> None:
    with pytest.raises(StageFailed, match="no result of gsm8k"):
        read_reports(REPORTS, [*DATASETS, "gsm8k"])


def test_unanswered_rows_are_refused(tmp_path: Path) -> None:
    report = json.loads((REPORTS / "general_mcq.json").read_text())
    report["execution_summary"] |= {"errored": 1, "incomplete": True}
    (tmp_path / "general_mcq.json").write_text(json.dumps(report))
    with pytest.raises(StageFailed, match="not every row"):
        read_reports(tmp_path, ["general_mcq"])


def test_models_that_answered_other_rows_are_not_compared() -> None:
    def scores(rows: int) -> Any:
        return {("x", "accuracy mean"): {"score": 0.5, "rows": rows, "main": True}}

    with pytest.raises(StageFailed, match="8 rows before and 4 after"):
        side_by_side(scores(8), scores(4))
    with pytest.raises(StageFailed, match="8 rows before and 0 after"):
        side_by_side(scores(8), {})


# --- the stage ---


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage whose `swift eval` leaves the recorded reports."""
    monkeypatch.chdir(tmp_path)
    start, checkpoint = tmp_path / "start", tmp_path / "output/checkpoint-2"
    for directory in (start, checkpoint):
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        (directory / "args.json").write_text('{"model": "another"}')
    train = tmp_path / "train.json"
    train.write_text(json.dumps({"checkpoint": str(checkpoint)}))
    monkeypatch.setattr("grpoflow.stages.models.check_run_checkpoint", lambda _: None)
    inputs = {"start": str(start / "config.json"), "train": str(train)}
    output = tmp_path / "results/main/benchmarks/manifest.json"
    config = configured({"sft": None})
    made = Stage("benchmarks", "main", config, inputs, output, tmp_path / "logs", {})

    def run(_: str, command: Command) -> None:
        model = Path(argument(command, "model"))
        # where `swift eval` appends its summary (swift/arguments/eval_args.py:117-121)
        assert json.loads((model / "args.json").read_text()) == {}
        assert (model / "config.json").is_file()
        output = Path(argument(command, "eval_output_dir")) / "native"
        assert not output.exists()
        shutil.copytree(REPORTS, output / "reports/model")

    monkeypatch.setattr(made, "run", run)
    return made


def test_both_models_are_asked_and_nothing_is_left_beside_the_result(stage: Stage, tmp_path: Path) -> None:
    benchmarks(stage)
    manifest = json.loads(stage.output.read_text())
    assert [result["dataset"] for result in manifest["results"] if result["main"]] == DATASETS
    assert manifest["checkpoint"].endswith("checkpoint-2")
    assert sorted(path.name for path in stage.output.parent.iterdir()) == ["grpo", "manifest.json", "sft"]
    assert json.loads((tmp_path / "start/args.json").read_text()) == {"model": "another"}
    assert not (tmp_path / "result").exists()


def test_a_second_run_starts_anew(stage: Stage) -> None:
    benchmarks(stage)
    stage.output.unlink()
    (stage.output.parent / "sft/native/reports/model/old.json").write_text("not of this run")
    benchmarks(stage)
    assert not (stage.output.parent / "sft/native/reports/model/old.json").exists()


RESULTS = [
    {"dataset": "gsm8k", "metric": "accuracy mean", "main": True, "rows": 4, "sft": 0.25, "grpo": 0.5},
    {"dataset": "gsm8k", "metric": "tokens mean", "main": False, "rows": 4, "sft": 1.0, "grpo": 2.0},
]


def test_main_metrics_are_on_the_model_card() -> None:
    lines = _about_benchmarks({"benchmarks": RESULTS})
    assert "| gsm8k accuracy mean | 4 | 0.2500 | 0.5000 |" in lines
    assert not any("tokens" in line for line in lines)
    assert _about_benchmarks({}) == []


def test_main_metrics_are_in_the_report() -> None:
    source = report.TEMPLATE.read_text()
    table = source[source.index("{% if evaluation.benchmarks") : source.index("<h2>Training")]
    template = report.ENVIRONMENT.from_string(table)
    page = template.render(evaluation={"benchmarks": RESULTS})
    assert "gsm8k accuracy mean" in page
    assert "0.2500" in page
    assert "tokens" not in page
    assert template.render(evaluation={}).strip() == ""


def test_what_has_no_score_is_a_dash() -> None:
    """EvalScope has none where no answer could be judged, a reward where it judges no row of the data."""
    result = {**RESULTS[0], "grpo": None}
    assert "| gsm8k accuracy mean | 4 | 0.2500 | - |" in _about_benchmarks({"benchmarks": [result]})
    source = report.TEMPLATE.read_text()
    table = source[source.index("<h2>Evaluation") : source.index("<h2>Training")]
    scores = {"sft": {"functions": {"mine": 0.5}}, "grpo": {"functions": {"mine": None}}}
    page = report.ENVIRONMENT.from_string(table).render(
        evaluation={"greedy": scores, "sampled": scores, "benchmarks": [result]},
        config={"rewards": {"functions": ["mine"]}},
    )
    assert [page.count(text) for text in (">0.5000<", ">0.2500<", ">-<")] == [2, 1, 3]


# --- preflight ---


def problems(tmp_path: Path, datasets: list[str], **packages: str) -> dict[str, Any]:
    prefix = environment(tmp_path, **packages)
    overlay = {"cluster": {"environment": prefix}, "evaluate": {"benchmarks": {"datasets": datasets}}}
    found = check_raw(raw_config(overlay))[1].problems
    return {problem.id: problem for problem in found if "benchmark" in problem.id}


def test_preflight_names_what_evalscope_lacks(tmp_path: Path) -> None:
    installed = {"evalscope": "1.14.1"}
    assert problems(tmp_path / "a", ["GSM8K"], **installed) == {}
    assert list(problems(tmp_path / "b", ["gsm8k"], torch="2.11.0")) == ["benchmarks_have_evalscope"]
    assert problems(tmp_path / "c", ["gsm8k"]) == {}, "an environment that is not on this machine"
    (found,) = problems(tmp_path / "d", ["gsm8k", "math500"], **installed).values()
    assert (found.id, found.value) == ("benchmark_is_known", "math500")
    assert "math_500" in found.legal
