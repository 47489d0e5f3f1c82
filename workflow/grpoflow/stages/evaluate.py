"""Stage evaluate: the model before and after GRPO, on held-out prompts, with the rewards of training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grpoflow.commands.infer import infer
from grpoflow.files import write_json

from .base import Stage, StageFailed, attempt_directory, finish, manifest_of
from .convert import start_directory
from .inside import inside
from .models import chosen_checkpoint, trained_model
from .statistics import Scores, paired_difference


def evaluate(stage: Stage) -> None:
    """Generate and score, greedy and sampled; the result is `evaluation.json`.

    Raises:
        StageFailed: completions are missing, empty, or belong to other prompts.
    """
    config = stage.config
    start = start_directory(stage)
    val = Path(stage.input["dataset"]).parent / "val.jsonl"
    rows = list(read_rows(val))
    with attempt_directory(stage) as work:
        checkpoint = chosen_checkpoint(config, manifest_of(stage.input["train"]))
        models = {"sft": start, "grpo": trained_model(stage, checkpoint, start, work)}
        result: dict[str, Any] = {"prompts": len(rows), "samples": config.evaluate.samples}
        for kind, repeats in (("greedy", 1), ("sampled", config.evaluate.samples)):
            scores = {
                name: _rewards(stage, f"{name}-{kind}", model, rows, repeats, work)
                for name, model in models.items()
            }
            result[kind] = _compare(stage, scores)
        gain = result["sampled"]["difference"]
        stage.say(
            f"reward {result['sampled']['sft']['reward']:.3f} -> {result['sampled']['grpo']['reward']:.3f}, "
            f"difference {gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
        )
        write_json(work / "evaluation.json", result)
        finish(stage, work, result="evaluation.json", checkpoint=str(checkpoint), **result)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as content:
        for line in content:
            yield json.loads(line)


def _rewards(
    stage: Stage, name: str, model: Path, rows: list[dict[str, Any]], repeats: int, work: Path
) -> dict[str, Scores]:
    """Complete every row `repeats` times; return rewards per function, [prompts, samples]."""
    prompts, answers = work / f"{name}.prompts.jsonl", work / f"{name}.completions.jsonl"
    repeated = [row for row in rows for _ in range(repeats)]
    _write_rows(prompts, repeated)
    stage.run(f"infer-{name}", infer(stage.config, model, prompts, answers, greedy=repeats == 1))
    completed = _join(repeated, answers)
    prompts.unlink()
    _write_rows(answers, completed)
    request, scored = work / f"{name}.request.json", work / f"{name}.rewards.jsonl"
    rewards = stage.config.rewards
    write_json(
        request,
        {
            "plugin": rewards.plugin and str(Path(rewards.plugin).absolute()),
            "functions": rewards.functions,
            "rows": str(answers),
            "result": str(scored),
        },
    )
    stage.run(f"score-{name}", inside(stage, "score", request))
    request.unlink()
    table = list(read_rows(scored))
    if len(table) != len(repeated):
        raise StageFailed(f"{len(table)} rewards for {len(repeated)} completions in {scored}")
    shape = (len(rows), repeats)
    return {f: np.array([row[f] for row in table], dtype=float).reshape(shape) for f in rewards.functions}


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as content:
        content.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _join(rows: list[dict[str, Any]], answers: Path) -> list[dict[str, Any]]:
    """Put each completion beside its row. `swift infer` drops the columns that the rewards need.

    Raises:
        StageFailed: the completions are not those of the rows, or all are empty.
    """
    if not answers.is_file():
        raise StageFailed(f"swift infer ended with code 0 and wrote no {answers}")
    completions = list(read_rows(answers))
    if len(completions) != len(rows):
        raise StageFailed(f"{len(completions)} completions for {len(rows)} prompts in {answers}")
    joined = []
    for row, answer in zip(rows, completions, strict=True):
        asked = [m["content"] for m in answer["messages"] if m["role"] == "user"]
        if asked != [m["content"] for m in row["messages"] if m["role"] == "user"]:
            raise StageFailed(f"{answers} holds its completions in another order than the prompts")
        joined.append({**row, "completion": answer["response"]})
    if not any(row["completion"] for row in joined):
        raise StageFailed(f"every completion in {answers} is empty")
    return joined


def _compare(stage: Stage, scores: dict[str, dict[str, Scores]]) -> dict[str, Any]:
    weights = stage.config.rewards.weight_of()
    total = {
        model: sum((weights[name] * values for name, values in by_function.items()), start=np.float64(0))
        for model, by_function in scores.items()
    }
    evaluate_keys = stage.config.evaluate
    return {
        **{
            model: {
                "reward": float(np.mean(total[model])),
                "functions": {name: float(values.mean()) for name, values in by_function.items()},
            }
            for model, by_function in scores.items()
        },
        "difference": paired_difference(
            np.asarray(total["sft"]), np.asarray(total["grpo"]), evaluate_keys.confidence, evaluate_keys.seed
        ),
    }
