"""Findings from numbers: trainings that silently learn nothing, and where time is lost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpoflow.facts.versions import VersionError, meets

from .findings import Finding
from .numbers import PART, WINDOW, Training
from .rules import finding
from .scan import LogFacts
from .split import Split

TORCH_TIMEOUT = 600.0
NEAR_TIMEOUT = 0.8
MIN_RECORDS = 3
MIN_STEP_SECONDS = 5.0  # below this there is no time to win
MIN_RUN_SECONDS = 300.0
MIN_SHARE = 0.15
MIN_TUNING_SECONDS = 30.0
MIN_TUNING_KEYS = 5
RANDOM_LOSS = 11.0
FALL = 0.25  # share of the best mean reward
DOMINATES = {"rollout": 0.8, "log-probs": 0.4, "sync": 0.2, "rewards": 0.2}
MOE = re.compile(r"moe|-A\d+(?:\.\d+)?B\b", re.IGNORECASE)
FLA = re.compile(r"^(?:fla-core|flash-linear-attention)==(\S+)", re.MULTILINE | re.IGNORECASE)
FLA_FIXED = ">=0.4.2"


def silent_failures(training: Training, args: Mapping[str, Any]) -> Iterator[Finding]:
    """Failures that leave no error text: the run goes on and learns nothing."""
    path, line, values = training.path, training.first_line, training.values
    if training.bad_line:
        yield finding("N01-not-finite", path, training.bad_line, training.bad_text)
    gradient = values.get("grad_norm")
    if gradient and training.records >= MIN_RECORDS and gradient.zeros == gradient.count:
        flat = training.mean("frac_reward_zero_std") > 0.99
        text = f"grad_norm 0 in all {gradient.count} records"
        yield finding("N02-no-reward-signal" if flat else "N02-no-gradient", path, line, text)
    length = values.get("completions/mean_length")
    if length and length.zeros == length.count:
        text = f"completions/mean_length 0 in all {length.count} records"
        yield finding("N03-empty-completions", path, line, text)
    if fall := _reward_fall(training, args):
        yield finding("N04-reward-falls-at-first-sync", path, training.first[1][0], fall)
    else:
        yield from _unlearning(training)
    if not training.grpo and training.zero_sft >= MIN_RECORDS:
        text = f"loss 0 and token_acc 0 in {training.zero_sft} records"
        yield finding("N05-sft-loss-zero", path, line, text)
    if not training.grpo and training.first_loss > RANDOM_LOSS:
        yield finding("N06-weights-not-loaded", path, line, f"first loss {training.first_loss:.2f}")


def _unlearning(training: Training) -> Iterator[Finding]:
    """A reward that rose and fell again; reward functions that fall while the reward is earned elsewhere."""
    reward = training.trends.get("reward")
    if reward is None or reward.count < 3 * WINDOW:
        return
    seen = []
    if length := training.trends.get("completions/mean_length"):
        seen.append(f"completions {length.first:.0f} -> {length.last:.0f} tokens")
    if flat := training.trends.get("frac_reward_zero_std"):
        seen.append(f"groups without signal {flat.first:.0%} -> {flat.last:.0%}")
    after = "; ".join(["", *seen])
    fall = reward.best - reward.last
    if fall > FALL * abs(reward.best) and fall > 3 * reward.noise:
        text = (
            f"reward {reward.first:.2f} at first, {reward.best:.2f} at its best, {reward.last:.2f} at the end"
        )
        yield finding("N07-reward-rises-and-falls", training.path, reward.best_line, text + after)
    for name, trend in training.trends.items():
        part = PART.fullmatch(name)
        if part and trend.first - trend.last > max(0.5 * trend.first, 4 * trend.noise) > 0:
            text = f"{part[1]} {trend.first:.2f} at first, {trend.last:.2f} at the end"
            yield finding("N08-reward-part-falls", training.path, training.last_line, text + after)


def _reward_fall(training: Training, args: Mapping[str, Any]) -> str:
    """Describe a collapse right after the first record that is far beyond the noise of the mean reward.

    The noise is that of one rollout: reward_std / sqrt(completions).
    """
    if len(training.first) < 5:
        return ""
    before, later = training.first[0][2], [reward for _, _, reward in training.first[1:5]]
    completions = float(args.get("generation_batch_size") or args.get("global_batch_size") or 64)
    noise = training.mean("reward_std") / math.sqrt(completions)
    mean = sum(later) / len(later)
    if before <= 0.05 or max(later) > 0.7 * before or mean > 0.6 * before or before - mean < 4 * noise:
        return ""
    return f"reward {before:.3f} at step {training.first[0][1]}, then " + " ".join(f"{r:.3f}" for r in later)


def slow_training(training: Training, args: Mapping[str, Any], split: Split | None) -> Iterator[Finding]:
    """Wasted time and wasted completions of one training. `args` is its args.json, {} if unknown."""
    path, line, values = training.path, training.last_line, training.values
    flat, gradient = values.get("frac_reward_zero_std"), values.get("grad_norm")
    learns = gradient is not None and gradient.zeros < gradient.count
    if flat and flat.count >= MIN_RECORDS and flat.mean >= 0.9 and learns:
        text = f"frac_reward_zero_std {flat.mean:.2f} on average"
        yield finding("S01-groups-without-signal", path, line, text)
    yield from _completion_length(training, args)
    step = training.plain.per_step
    if split and step >= MIN_STEP_SECONDS:
        for phase, limit in DOMINATES.items():
            if (share := split.share(phase)) >= limit:
                yield finding(f"S02-{phase}-dominates", split.path, None, str(split), share=f"{share:.0%}")
    for name, intervals in (("saving", training.saving), ("evaluation", training.evaluating)):
        extra = intervals.seconds - intervals.steps * step if intervals.count and step > 0 else 0.0
        if training.seconds >= MIN_RUN_SECONDS and extra >= MIN_SHARE * training.seconds:
            share = extra / training.seconds
            text = f"{name} takes {extra / intervals.count:.0f} s each, {share:.0%} of the time"
            yield finding(f"S03-{name}", path, line, text)
    timeout = float(args.get("ddp_timeout") or TORCH_TIMEOUT)
    if training.longest_step >= NEAR_TIMEOUT * timeout:
        text = f"a step of {training.longest_step:.0f} s; time-out {timeout:.0f} s"
        yield finding("S04-near-the-watchdog", path, line, text)
    model = str(args.get("model") or args.get("model_type"))
    if _zero_stage(args) == 3 and MOE.search(f"{args.get('model_type')} {model}"):
        yield finding("S05-zero3-with-experts", path, None, f"deepspeed ZeRO-3 with {model}")


def _completion_length(training: Training, args: Mapping[str, Any]) -> Iterator[Finding]:
    cap = float(args.get("max_completion_length") or math.nan)
    clipped = training.mean("completions/clipped_ratio")  # Megatron does not log it
    longest = training.values.get("completions/max_length")
    mean = training.mean("completions/mean_length")
    if training.records < MIN_RECORDS or longest is None:
        return
    text = f"mean length {mean:.0f}, longest {longest.high:.0f}"
    if clipped >= 0:
        text += f", clipped_ratio {clipped:.2f}"
    if cap > 0:
        text += f", max_completion_length {cap:.0f}"
    if clipped > 0.05 and longest.high < 0.98 * cap:
        yield finding("S06-clipped-by-the-window", training.path, training.last_line, text)
    elif clipped >= 0.5 or mean >= 0.9 * cap:
        yield finding("S07-length-at-the-cap", training.path, training.last_line, text)


def _zero_stage(args: Mapping[str, Any]) -> int:
    deepspeed = args.get("deepspeed")
    if isinstance(deepspeed, Mapping):
        zero = deepspeed.get("zero_optimization")
        return int(zero.get("stage", 0)) if isinstance(zero, Mapping) else 0
    return 3 if isinstance(deepspeed, str) and "zero3" in deepspeed else 0


def tuning(logs: Sequence[LogFacts]) -> tuple[list[Finding], list[str]]:
    """Triton's autotuning per kernel: a finding if a kernel is tuned again and again, else a note.

    The ranks tune at the same time: the seconds of a key are the longest of one log, and those of the run are
    the largest of all logs.
    """
    totals = [sum(kernel.total for kernel in log.kernels.values()) for log in logs]
    if not any(totals):
        return [], []
    log = logs[totals.index(max(totals))]
    again = {name: kernel for name, kernel in log.kernels.items() if len(kernel.seconds) >= MIN_TUNING_KEYS}
    lost = sum(kernel.total for kernel in again.values())
    if lost < MIN_TUNING_SECONDS:
        kernels = f"Triton tuned {len(log.kernels)} kernels for {max(totals):.0f} s"
        return [], [f"{kernels}: once per TRITON_CACHE_DIR"]
    by_time = sorted(again.items(), key=lambda item: -item[1].total)
    parts = [f"{name} {len(kernel.seconds)} times {kernel.total:.0f} s" for name, kernel in by_time]
    text = f"Triton autotuning, {lost:.0f} s lost: {', '.join(parts)}"
    line = min(kernel.line for kernel in again.values())
    return [finding("S08-triton-tunes-again", log.source.path, line, text, log.source.role)], []


def packages(paths: Iterable[Path]) -> Iterator[Finding]:
    """Versions in a pip freeze that are known to be slow."""
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        for match in FLA.finditer(text):
            if _older(match[1]):
                yield finding("S09-old-fla", path, text.count("\n", 0, match.start()) + 1, match[0])
                return


def _older(version: str) -> bool:
    try:
        return not meets(version, FLA_FIXED)
    except VersionError:
        return False


def normal_loss(training: Training) -> str:
    """A note that a GRPO loss near zero is normal; empty if there is nothing to say."""
    loss = training.values.get("loss")
    if not training.grpo or loss is None or abs(loss.mean) > 1e-2:
        return ""
    return (
        f"the GRPO loss is near 0 ({loss.mean:.1e} on average in {training.path}). That is normal: advantages"
        " have mean 0, and the policy is the one that generated. Judge by reward and grad_norm."
    )
