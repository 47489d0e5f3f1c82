"""Stage evaluate: the model before and after GRPO, on held-out prompts, with the rewards of training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpoflow.commands.distributed import ranks_of_nodes
from grpoflow.commands.infer import infer
from grpoflow.commands.rewards import reward_request
from grpoflow.config import Config
from grpoflow.files import fingerprint, write_json
from grpoflow.gates import judge_completions
from grpoflow.launch.ports import free_port
from grpoflow.plan.inference import inference_of

from .attempt import attempt_directory
from .base import Stage, StageFailed, finish, manifest_of
from .convert import start_directory
from .dataset import frozen_dataset
from .inside import inside
from .models import assemble_model, chosen_checkpoint, kept_checkpoints
from .statistics import Scores, length_statistics, mean_of_prompts, paired_difference, pass_at

SHOWN = 5
"""Examples of each kind that the manifest holds."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """All completions of one model, made in one way."""

    rewards: dict[str, Scores]
    """By function, [prompts, samples]."""
    tokens: NDArray[np.int64]
    """Length of each completion, [prompts, samples]."""
    completions: list[list[str]]

    def total(self, weights: Mapping[str, float]) -> Scores:
        """Weighted reward. What a function did not judge counts nothing, as in training
        (swift/rl_core/grpo_algorithm.py: nansum)."""
        parts = np.stack([weights[name] * values for name, values in self.rewards.items()])
        return np.asarray(np.nansum(parts, axis=0))


def evaluate(stage: Stage) -> None:
    """Generate and score, greedy and sampled.

    Raises:
        StageFailed: completions are missing, empty, made with other thinking than in training, or belong to
            other prompts.
    """
    config = stage.config
    start, train = start_directory(stage), manifest_of(stage.input["train"])
    dataset = Path(stage.input["dataset"])
    rows = list(read_rows(dataset.parent / "val.jsonl"))
    prefix = str(frozen_dataset(stage)["template"]["response_prefix"] or "")
    chosen = chosen_checkpoint(config, train)
    curve = {f"step-{step}": path for step, path in _curve(config, train).items() if path != chosen}
    facts = {"checkpoint": str(chosen), "engine": config.evaluate.engine}
    with attempt_directory(stage) as work:
        completed: dict[tuple[str, str], Path] = {}
        for name, checkpoint in {"sft": None, "grpo": chosen, **curve}.items():
            model = start if checkpoint is None else work / "model"
            if checkpoint is not None:
                assemble_model(stage, checkpoint, start, model)
            if checkpoint == chosen:
                facts["fingerprint"] = fingerprint(model)
            for kind, repeats in _kinds(config).items():
                completed[name, kind] = _complete(stage, f"{name}-{kind}", model, rows, repeats, prefix, work)
            if checkpoint is not None:
                shutil.rmtree(model)
        scored = _score(stage, completed, start, prefix, work)
        result: dict[str, Any] = {"prompts": len(rows), "samples": config.evaluate.samples}
        for kind in _kinds(config):
            result[kind] = compare(config, scored["sft", kind], scored["grpo", kind])
        result["examples"] = examples(config, rows, scored["sft", "sampled"], scored["grpo", "sampled"])
        result["findings"] = _findings(scored, prefix)
        if curve:
            result["curve"] = [_point(config, name, chosen, scored) for name in ("sft", *curve, "grpo")]
            result["curve"].sort(key=lambda point: point["step"])
        if stage.input.get("benchmarks"):
            result["benchmarks"] = manifest_of(stage.input["benchmarks"])["results"]
        gain = result["sampled"]["difference"]
        stage.say(
            f"reward {result['sampled']['sft']['reward']:.3f} -> {result['sampled']['grpo']['reward']:.3f}, "
            f"difference {gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
        )
        for finding in result["findings"]:
            stage.say(finding)
        finish(stage, work, **facts, **result)


def _kinds(config: Config) -> dict[str, int]:
    """Completions per prompt of each way to generate."""
    return {"greedy": 1, "sampled": config.evaluate.samples}


def _curve(config: Config, train: Mapping[str, Any]) -> dict[int, Path]:
    """Checkpoints of the run that are evaluated as well, by step.

    Raises:
        StageFailed: a step of `evaluate.checkpoints` was not kept.
    """
    wanted = config.evaluate.checkpoints
    if wanted == "none":
        return {}
    kept = kept_checkpoints(Path(train["checkpoint"]).parent)
    if wanted == "all":
        return kept
    missing = sorted(set(wanted) - kept.keys())
    if missing:
        raise StageFailed(
            f"evaluate.checkpoints: there is no step {', '.join(map(str, missing))}; kept are "
            f"{', '.join(map(str, kept))} (trainer.save_total_limit: {config.trainer.save_total_limit})"
        )
    return {step: kept[step] for step in sorted(set(wanted))}


def read_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as content:
        for line in content:
            yield json.loads(line)


def _complete(
    stage: Stage, name: str, model: Path, rows: Sequence[Row], repeats: int, prefix: str, work: Path
) -> Path:
    """Complete every row `repeats` times; return the JSONL of rows with their completions."""
    prompts, answers = work / f"{name}.prompts.jsonl", work / f"{name}.answers.jsonl"
    repeated = [row for row in rows for _ in range(repeats)]
    write_rows(prompts, repeated)
    found, port = inference_of(stage.config), free_port()
    commands = [
        infer(stage.config, model, prompts, answers, greedy=repeats == 1, ranks=ranks)
        for ranks in ranks_of_nodes(found.nproc_per_node, found.nodes, port)
    ]
    stage.run(f"infer-{name}", commands)
    completed = work / f"{name}.jsonl"
    write_rows(completed, join(repeated, answers, prefix))
    prompts.unlink()
    answers.unlink()
    return completed


def _score(
    stage: Stage, completed: Mapping[tuple[str, str], Path], start: Path, prefix: str, work: Path
) -> dict[tuple[str, str], Scored]:
    """Score files of completions with the reward functions of training, in one program."""
    request = work / "score.json"
    results = {key: path.with_suffix(".rewards.jsonl") for key, path in completed.items()}
    files = [{"rows": str(path), "result": str(results[key])} for key, path in completed.items()]
    content = {"tokenizer": str(start), "prefix": prefix, "files": files}
    write_json(request, {**reward_request(stage.config), **content})
    stage.run("score", inside(stage, "score", request))
    request.unlink()
    kinds = _kinds(stage.config)
    return {
        (name, kind): read_scores(stage.config, completed[name, kind], result, kinds[kind])
        for (name, kind), result in results.items()
    }


def read_scores(config: Config, completed: Path, scores: Path, repeats: int) -> Scored:
    """Arrange the scores of completions by prompt."""
    found = list(read_rows(scores))
    texts = [str(row["completion"]) for row in read_rows(completed)]
    return Scored(
        rewards={
            name: np.array([row["rewards"][name] for row in found], dtype=float).reshape(-1, repeats)
            for name in config.rewards.functions
        },
        tokens=np.array([row["tokens"] for row in found], dtype=np.int64).reshape(-1, repeats),
        completions=[texts[start : start + repeats] for start in range(0, len(texts), repeats)],
    )


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8") as content:
        content.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def join(rows: Sequence[Row], answers: Path, prefix: str) -> list[Row]:
    """Put each completion beside its row. `swift infer` drops the columns that the rewards need.

    Raises:
        StageFailed: the completions are not those of the rows, all are empty, or they do not begin as the
            template of training says.
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
    fatal = ("completions", "thinking")
    for finding in judge_completions([row["completion"] for row in joined], prefix):
        if finding.gate in fatal or (finding.gate == "empty completions" and finding.numbers["share"] == 1):
            raise StageFailed(f"{answers.name}: {finding}")
    return joined


def describe(config: Config, scored: Scored) -> dict[str, Any]:
    """Rewards, lengths and pass@k of one model."""
    found: dict[str, Any] = {
        "reward": float(scored.total(config.rewards.weight_of()).mean()),
        "functions": {name: _mean(values) for name, values in scored.rewards.items()},
        "tokens": length_statistics(scored.tokens, config.trainer.max_completion_length),
    }
    if scored.tokens.shape[1] > 1:
        threshold = config.evaluate.pass_reward
        found["pass_at"] = {name: pass_at(values, threshold) for name, values in scored.rewards.items()}
    return found


def _mean(values: Scores) -> float | None:
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def compare(config: Config, before: Scored, after: Scored) -> dict[str, Any]:
    """Both models, and the paired differences of the weighted reward and of every function."""
    settings, weights = config.evaluate, config.rewards.weight_of()
    return {
        "sft": describe(config, before),
        "grpo": describe(config, after),
        "difference": paired_difference(
            before.total(weights), after.total(weights), settings.confidence, settings.seed
        ),
        "differences": {
            name: found
            for name in weights
            if (
                found := paired_difference(
                    before.rewards[name], after.rewards[name], settings.confidence, settings.seed
                )
            )["prompts"]
        },
    }


def examples(config: Config, rows: Sequence[Row], before: Scored, after: Scored) -> dict[str, list[Row]]:
    """The prompts that gained and lost most, each with a completion from before and after."""
    weights = config.rewards.weight_of()
    totals = {"before": before.total(weights), "after": after.total(weights)}
    change = mean_of_prompts(totals["after"]) - mean_of_prompts(totals["before"])
    order = np.argsort(-change, kind="stable")

    def example(index: int) -> Row:
        found: Row = {"row": index + 1, "messages": rows[index]["messages"]}
        for side, scored in (("before", before), ("after", after)):
            mean = float(totals[side][index].mean())
            # the completion that is nearest to what the model does on average
            typical = int(np.abs(totals[side][index] - mean).argmin())
            found[side] = {"reward": mean, "completion": scored.completions[index][typical]}
        return found

    return {
        "improved": [example(int(index)) for index in order[:SHOWN] if change[index] > 0],
        "damaged": [example(int(index)) for index in order[::-1][:SHOWN] if change[index] < 0],
    }


def _findings(scored: Mapping[tuple[str, str], Scored], prefix: str) -> list[str]:
    """What the gates of training say about the completions."""
    return [
        f"{name}, {kind}: {finding}"
        for (name, kind), found in scored.items()
        for finding in judge_completions([text for texts in found.completions for text in texts], prefix)
    ]


def _point(
    config: Config, name: str, chosen: Path, scored: Mapping[tuple[str, str], Scored]
) -> dict[str, Any]:
    """One point of the curve: a checkpoint against the start."""
    path = {"sft": "0", "grpo": chosen.name}.get(name, name)
    weights, settings = config.rewards.weight_of(), config.evaluate
    point: dict[str, Any] = {"step": int(path.rpartition("-")[2])}
    for kind in _kinds(config):
        found = describe(config, scored[name, kind])
        found["difference"] = paired_difference(
            scored["sft", kind].total(weights),
            scored[name, kind].total(weights),
            settings.confidence,
            settings.seed,
        )
        point[kind] = found
    return point
