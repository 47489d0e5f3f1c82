"""Where the time of a step goes: rollout, log-probs, update, sync.

ms-swift measures its phases (`profiling/Time taken: <trainer>.<function>`, swift/rlhf_trainers/utils.py:576)
but gives them to wandb and swanlab only. They are read from `wandb-summary.json` (the last step) or from a
`profiling.jsonl` with the same keys (all steps). Without them, the time of generation is read from the
progress bars that `swift rollout` prints in its log, one per request of the trainer, and the rest stays one
piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .numbers import Training, lines, number_of
from .scan import LogFacts

KEY = re.compile(r"profiling/Time taken: (?P<trainer>\w+)\.(?P<name>\w+)")
# Outer functions contain inner ones: _generate_completions of Megatron contains _move_model_to_vllm, and
# _prepare_batch_inputs of swift rlhf is the encoding and the old and reference log-probabilities.
MEGATRON = {
    "log-probs": "compute_ref_old_logps",
    "sync": "_move_model_to_vllm",
    "rewards": "_score_completions",
}
SWIFT = {
    "rollout": "generate",
    "log-probs": "_prepare_batch_inputs",
    "sync": "_move_model_to_vllm",
    "rewards": "_score_completions",
}
MIN_BAR_SECONDS = 2.0


@dataclass(frozen=True)
class Split:
    """Seconds per optimizer step by phase, with the file they come from."""

    seconds: dict[str, float]
    path: Path

    def share(self, phase: str) -> float:
        return self.seconds.get(phase, 0.0) / sum(self.seconds.values())

    def __str__(self) -> str:
        parts = sorted(self.seconds.items(), key=lambda item: -item[1])
        total = sum(self.seconds.values())
        return f"{total:.1f} s a step: " + ", ".join(
            f"{name} {seconds:.1f} s ({seconds / total:.0%})" for name, seconds in parts
        )


def step_split(
    training: Training, profiles: Iterable[Path], logs: Iterable[LogFacts], args: Mapping[str, Any]
) -> Split | None:
    """Split the mean step of a training; None if nothing tells. `args` is its args.json."""
    step = training.plain.per_step
    if not step > 0:
        return None
    for path in profiles:
        if path.name == "wandb-summary.json":
            measured, steps = _totals([(0, _object(path))]), _steps_per_rollout(args)
        else:
            measured, steps = _totals(lines(path)), float(training.steps)
        if measured and steps:
            return _from_profile(measured, steps, step, path)
    return _from_bars(training, logs, step)


def _totals(records: Iterable[tuple[int, dict[str, Any]]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for _, record in records:
        for key in record:
            if match := KEY.fullmatch(key):
                name = f"{'megatron' if 'Megatron' in match['trainer'] else 'swift'} {match['name']}"
                totals[name] = totals.get(name, 0.0) + number_of(record, key)
    return totals


def _from_profile(totals: dict[str, float], steps: float, step: float, path: Path) -> Split:
    if any(name.startswith("megatron") for name in totals):
        seconds = {phase: totals.get(f"megatron {name}", 0.0) / steps for phase, name in MEGATRON.items()}
        seconds["rollout"] = totals.get("megatron _generate_completions", 0.0) / steps - seconds["sync"]
    else:
        seconds = {phase: totals.get(f"swift {name}", 0.0) / steps for phase, name in SWIFT.items()}
    seconds["update and rest"] = step - sum(seconds.values())
    return Split({phase: value for phase, value in seconds.items() if value > 0}, path)


def _from_bars(training: Training, logs: Iterable[LogFacts], step: float) -> Split | None:
    per_step = 0.0
    path = training.path
    for log in logs:
        if log.bars and log.infer_calls and log.bar_seconds / log.bars >= MIN_BAR_SECONDS:
            # several data-parallel engines print a bar each for one request, at the same time
            seconds = log.bar_seconds / log.bars * log.infer_calls / max(1, training.steps + 1)
            if seconds > per_step:
                per_step, path = seconds, log.source.path
    if per_step == 0:
        return None
    per_step = min(per_step, step)
    return Split({"rollout": per_step, "log-probs, update, sync": max(step - per_step, 0.0)}, path)


def _steps_per_rollout(args: Mapping[str, Any]) -> float:
    generations = number_of(dict(args), "steps_per_generation")
    accumulation = number_of(dict(args), "gradient_accumulation_steps")
    if "micro_batch_size" in args:
        accumulation = 1.0
    return generations / accumulation if generations > 0 and accumulation > 0 else 1.0


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
