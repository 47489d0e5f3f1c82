"""Read `logging.jsonl` of ms-swift in constant memory: sums, and what silently went wrong.

Field names (ms-swift 4.6.0): swift/megatron/callbacks/print.py and swift/megatron/trainers/grpo_trainer.py
for Megatron (`iteration`), swift/trainers/patcher.py and swift/rlhf_trainers/grpo_trainer.py for swift rlhf
(`global_step/max_steps`, `completions/clipped_ratio`). A resumed run appends to the file; `elapsed_time` then
starts again, so intervals are taken between neighbouring lines of one process only.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .sources import opened

LINE_BYTES = 1 << 20
FIRST = 8
WINDOW = 10  # records of a mean that is compared over time
STEP_KEYS = ("iteration", "global_step/max_steps")
STEP = re.compile(r"(\d+)/(\d+)")
SPAN = re.compile(r"(?:(\d+)d )?(?:(\d+)h )?(?:(\d+)m )?(\d+)s")


@dataclass
class Mean:
    """A running mean with its extremes and the number of zeros."""

    count: int = 0
    total: float = 0.0
    zeros: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.zeros += value == 0
        self.low, self.high = min(self.low, value), max(self.high, value)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan


@dataclass
class Intervals:
    """Seconds and steps between logged lines of one sort: with a save or an evaluation in them, or plain."""

    count: int = 0
    steps: int = 0
    seconds: float = 0.0

    def add(self, steps: int, seconds: float) -> None:
        self.count += 1
        self.steps += steps
        self.seconds += seconds

    @property
    def per_step(self) -> float:
        return self.seconds / self.steps if self.steps else math.nan


@dataclass
class Trend:
    """A number at the start, at its best and at the end, each as the mean of WINDOW records."""

    count: int = 0
    first: float = math.nan
    best: float = -math.inf
    best_line: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, value: float, line: int) -> None:
        self.count += 1
        self.recent.append(value)
        if self.count == WINDOW:
            self.first = self.last
        if self.count >= WINDOW and self.last > self.best:
            self.best, self.best_line = self.last, line

    @property
    def last(self) -> float:
        return statistics.fmean(self.recent) if self.recent else math.nan

    @property
    def noise(self) -> float:
        """Standard error of `last`."""
        return statistics.pstdev(self.recent) / math.sqrt(len(self.recent)) if self.recent else math.nan


@dataclass
class Training:
    """What one `logging.jsonl` says.

    values: running means by field name. first: the first FIRST records, as (line, step, reward). bad_line:
    the first line with a NaN or infinite loss or gradient. zero_sft: records whose loss and token_acc are 0.
    trends: of the reward, of each reward function (its name in `rewards/NAME/mean`) and of TREND.
    """

    path: Path
    save_steps: int = 0
    values: dict[str, Mean] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)
    first: list[tuple[int, int, float]] = field(default_factory=list)
    grpo: bool = False
    records: int = 0
    first_line: int = 0
    last_line: int = 0
    first_loss: float = math.nan
    zero_sft: int = 0
    bad_line: int = 0
    bad_text: str = ""
    plain: Intervals = field(default_factory=Intervals)
    saving: Intervals = field(default_factory=Intervals)
    evaluating: Intervals = field(default_factory=Intervals)
    first_step_seconds: float = 0.0  # of every process: compilation and the first rollout are in it
    longest_step: float = 0.0
    gpu: bool = False

    def mean(self, name: str) -> float:
        return self.values[name].mean if name in self.values else math.nan

    @property
    def seconds(self) -> float:
        return self.plain.seconds + self.saving.seconds + self.evaluating.seconds + self.first_step_seconds

    @property
    def steps(self) -> int:
        return self.plain.steps + self.saving.steps + self.evaluating.steps


KEPT = (
    "loss",
    "grad_norm",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "completions/mean_length",
    "completions/max_length",
    "completions/clipped_ratio",
    "rollout_correction/k3_kl",
    "step_time",
)
TREND = ("reward", "completions/mean_length", "frac_reward_zero_std")
PART = re.compile(r"rewards/(.+)/mean")


def read(path: Path, save_steps: int) -> Training:
    """Read a `logging.jsonl`. `save_steps` tells which intervals hold a save (0: unknown)."""
    training = Training(path, save_steps)
    before: tuple[int, float] | None = None
    evaluated = False
    for number, record in lines(path):
        if "loss" not in record:
            evaluated = evaluated or any(key.startswith("eval_") for key in record)
            continue
        now = _add(training, number, record)
        if now is None:
            continue
        if (
            before is None or now[1] < before[1] or now[0] <= before[0]
        ):  # the first line, or that of a resumed run
            training.first_step_seconds += now[1]
        else:
            _add_interval(training, now[0] - before[0], now[1] - before[1], now[0], evaluated)
        before, evaluated = now, False
    return training


def lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and object of each line. The closing line, which repeats the history, may be skipped."""
    with opened(path) as content:
        number = 0
        while line := content.readline(LINE_BYTES):
            number += 1
            whole = line.endswith(b"\n")
            while not whole and (rest := content.readline(LINE_BYTES)):
                whole = rest.endswith(b"\n")
                line = line[:LINE_BYTES] + b"..."
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield number, record


def _add(training: Training, number: int, record: dict[str, Any]) -> tuple[int, float] | None:
    training.records += 1
    training.first_line = training.first_line or number
    training.last_line = number
    training.grpo = training.grpo or "reward" in record
    training.gpu = training.gpu or number_of(record, "memory(GiB)") > 0
    for name in KEPT:
        value = number_of(record, name)
        if (
            name in ("loss", "grad_norm")
            and name in record
            and not math.isfinite(value)
            and not training.bad_line
        ):
            training.bad_line, training.bad_text = number, f"{name} {record[name]}"
        if math.isfinite(value):
            training.values.setdefault(name, Mean()).add(value)
    for name in (*TREND, *filter(PART.fullmatch, record)):
        value = number_of(record, name)
        if math.isfinite(value):
            training.trends.setdefault(name, Trend()).add(value, number)
    if training.records == 1:
        training.first_loss = number_of(record, "loss")
    training.zero_sft += record["loss"] == 0 and record.get("token_acc") == 0
    position = STEP.fullmatch(next((str(record[key]) for key in STEP_KEYS if key in record), ""))
    elapsed = SPAN.fullmatch(str(record.get("elapsed_time", "")))
    if position is None or elapsed is None:
        return None
    step = int(position[1])
    if len(training.first) < FIRST and math.isfinite(number_of(record, "reward")):
        training.first.append((number, step, number_of(record, "reward")))
    days, hours, minutes, seconds = (int(part or 0) for part in elapsed.groups())
    return step, float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _add_interval(training: Training, steps: int, seconds: float, step: int, evaluated: bool) -> None:
    if evaluated:
        training.evaluating.add(steps, seconds)
    # a save after step s is in the interval that begins at s
    elif (
        training.save_steps and (step - 1) // training.save_steps > (step - steps - 1) // training.save_steps
    ):
        training.saving.add(steps, seconds)
    else:
        training.plain.add(steps, seconds)
        training.longest_step = max(training.longest_step, seconds / steps)


def number_of(record: dict[str, Any], name: str) -> float:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
