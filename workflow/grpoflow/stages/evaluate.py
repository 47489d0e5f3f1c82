"""Stage evaluate: the model before and after GRPO, on held-out prompts, with the rewards of training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grpoflow.commands.infer import infer
from grpoflow.config import Config
from grpoflow.files import write_json

from .base import Stage, StageFailed, attempt_directory, finish, manifest_of
from .convert import start_directory
from .inside import inside
from .models import assemble_model, chosen_checkpoint
from .statistics import Scores, paired_difference


def evaluate(stage: Stage) -> None:
    """Generate and score, greedy and sampled.

    Raises:
        StageFailed: completions are missing, empty, or belong to other prompts.
    """
    config = stage.config
    start = start_directory(stage)
    val = Path(stage.input["dataset"]).parent / "val.jsonl"
    rows = list(read_rows(val))
    with attempt_directory(stage) as work:
        checkpoint = chosen_checkpoint(config, manifest_of(stage.input["train"]))
        assemble_model(stage, checkpoint, start, work / "model")
        models = {"sft": start, "grpo": work / "model"}
        completions: dict[tuple[str, str], Path] = {}
        for kind, repeats in _kinds(config).items():
            for name, model in models.items():
                completions[name, kind] = _complete(stage, f"{name}-{kind}", model, rows, repeats, work)
        shutil.rmtree(work / "model")
        rewards = _score(stage, list(completions.values()), work)
        result: dict[str, Any] = {"prompts": len(rows), "samples": config.evaluate.samples}
        for kind, repeats in _kinds(config).items():
            result[kind] = _compare(
                config, {name: _table(rewards[completions[name, kind]], config, repeats) for name in models}
            )
        gain = result["sampled"]["difference"]
        stage.say(
            f"reward {result['sampled']['sft']['reward']:.3f} -> {result['sampled']['grpo']['reward']:.3f}, "
            f"difference {gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
        )
        finish(stage, work, checkpoint=str(checkpoint), **result)


def _kinds(config: Config) -> dict[str, int]:
    """Completions per prompt of each way to generate."""
    return {"greedy": 1, "sampled": config.evaluate.samples}


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as content:
        for line in content:
            yield json.loads(line)


def _complete(
    stage: Stage, name: str, model: Path, rows: list[dict[str, Any]], repeats: int, work: Path
) -> Path:
    """Complete every row `repeats` times; return the JSONL of rows with their completions."""
    prompts, answers = work / f"{name}.prompts.jsonl", work / f"{name}.jsonl"
    repeated = [row for row in rows for _ in range(repeats)]
    _write_rows(prompts, repeated)
    stage.run(f"infer-{name}", infer(stage.config, model, prompts, answers, greedy=repeats == 1))
    completed = _join(repeated, answers)
    prompts.unlink()
    _write_rows(answers, completed)
    return answers


def _score(stage: Stage, files: list[Path], work: Path) -> dict[Path, list[dict[str, float]]]:
    """Score files of completions with the reward functions of training, in one program."""
    request, rewards = work / "score.json", stage.config.rewards
    results = {path: path.with_suffix(".rewards.jsonl") for path in files}
    write_json(
        request,
        {
            "plugin": rewards.plugin and str(Path(rewards.plugin).absolute()),
            "functions": rewards.functions,
            "files": [{"rows": str(path), "result": str(result)} for path, result in results.items()],
        },
    )
    stage.run("score", inside(stage, "score", request))
    request.unlink()
    return {path: list(read_rows(result)) for path, result in results.items()}


def _table(rewards: list[dict[str, float]], config: Config, repeats: int) -> dict[str, Scores]:
    """Rewards per function, [prompts, samples]."""
    return {
        name: np.array([row[name] for row in rewards], dtype=float).reshape(-1, repeats)
        for name in config.rewards.functions
    }


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


def _compare(config: Config, scores: dict[str, dict[str, Scores]]) -> dict[str, Any]:
    weights = config.rewards.weight_of()
    total = {
        model: sum((weights[name] * values for name, values in by_function.items()), start=np.float64(0))
        for model, by_function in scores.items()
    }
    settings = config.evaluate
    return {
        **{
            model: {
                "reward": float(np.mean(total[model])),
                "functions": {name: float(values.mean()) for name, values in by_function.items()},
            }
            for model, by_function in scores.items()
        },
        "difference": paired_difference(
            np.asarray(total["sft"]), np.asarray(total["grpo"]), settings.confidence, settings.seed
        ),
    }
