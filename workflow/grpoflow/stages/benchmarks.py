"""Stage benchmarks: public benchmarks on the model before and after GRPO, where they are configured."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from grpoflow.commands.base import Command, program
from grpoflow.commands.benchmark import benchmark
from grpoflow.files import read_json, write_json
from grpoflow.launch.ports import free_port
from grpoflow.plan.inference import inference_of

from .attempt import attempt_directory
from .base import Stage, StageFailed, finish, manifest_of, number
from .convert import start_directory
from .inside import inside
from .models import assemble_model, chosen_checkpoint, link_model

Scores = dict[tuple[str, str], dict[str, Any]]
"""(data set, metric) -> score, rows, and whether it is the main metric of its data set."""


def benchmarks(stage: Stage) -> None:
    """Run `swift eval` on both models.

    Raises:
        ProgramFailed: EvalScope failed.
        StageFailed: a data set has no result, or the two models answered other rows.
    """
    config = stage.config
    wanted = config.evaluate.benchmarks
    if wanted is None:
        raise StageFailed("evaluate.benchmarks is not configured")
    start = start_directory(stage)
    chosen = chosen_checkpoint(config, manifest_of(stage.input["train"]))
    with attempt_directory(stage) as work:
        scores: dict[str, Scores] = {}
        for name, checkpoint in {"sft": None, "grpo": chosen}.items():
            model = work / "model"
            if checkpoint is None:
                link_model(start, model)
            else:
                assemble_model(stage, checkpoint, start, model)
            # without it `swift eval` appends its summary to ./result (swift/arguments/eval_args.py:117-123)
            write_json(model / "args.json", {})
            output = work / name
            command = benchmark(config, wanted, model, output, free_port(), inference_of(config).copies)
            stage.run(f"eval-{name}", without_opencompass(stage, command))
            shutil.rmtree(model)
            scores[name] = read_reports(output / "native" / "reports", wanted.datasets)
        results = side_by_side(scores["sft"], scores["grpo"])
        for result in (result for result in results if result["main"]):
            before, after = (number(result[name]) for name in ("sft", "grpo"))
            stage.say(f"{result['dataset']} {result['metric']} {before} -> {after}")
        finish(stage, work, checkpoint=str(chosen), engine=config.evaluate.engine, results=results)


def without_opencompass(stage: Stage, command: Command) -> Command:
    """The same `swift eval` from grpoflow.training_env.swift_eval, which says why."""
    made = inside(stage, "swift_eval", *command.argv[len(program(stage.config, "swift", "eval")) :])
    return Command(made.argv, {**command.env, **made.env})


def read_reports(directory: Path, datasets: list[str]) -> Scores:
    """Read EvalScope's report of each data set.

    Raises:
        StageFailed: one has none, or it is of no rows, or rows are missing.
    """
    found: Scores = {}
    for path in sorted(directory.rglob("*.json")):
        report = read_json(path)
        if (report.get("execution_summary") or {}).get("incomplete"):
            raise StageFailed(f"{path}: not every row was answered")
        main = report.get("primary_metric_identity")
        for metric in report["metrics"]:
            found[report["dataset_name"], _name(metric)] = {
                "score": metric["score"],
                "rows": metric["num"],
                "main": main is None or metric["identity"] == main,
            }
    answered = {dataset.lower() for (dataset, _), metric in found.items() if metric["rows"]}
    missing = [name for name in datasets if name.lower() not in answered]
    if missing:
        raise StageFailed(f"EvalScope left no result of {', '.join(missing)} in {directory}")
    return found


def _name(metric: dict[str, Any]) -> str:
    """A metric with what tells it apart, e.g. `rouge mean variant=l`; in reports of version 1 its name."""
    identity = metric.get("identity")
    if identity is None:
        return str(metric["name"])
    more = (f"{key}={value}" for key, value in identity["dimensions"].items())
    return " ".join((identity["name"], identity["aggregation"], *more))


def side_by_side(before: Scores, after: Scores) -> list[dict[str, Any]]:
    """One entry per data set and metric, with the scores of both models.

    Raises:
        StageFailed: they are not of the same rows.
    """
    results = []
    for (dataset, metric), sft in before.items():
        grpo = after.get((dataset, metric), {"rows": 0})
        if grpo["rows"] != sft["rows"]:
            counts = f"{sft['rows']} rows before and {grpo['rows']} after GRPO"
            raise StageFailed(f"{dataset} {metric}: {counts}: nothing to compare")
        results.append(
            {
                "dataset": dataset,
                "metric": metric,
                "main": sft["main"],
                "rows": sft["rows"],
                "sft": sft["score"],
                "grpo": grpo["score"],
            }
        )
    return results
