"""Judging what a training produces: the first rollout after the first weight sync, and every step after it.

A wrong weight sync, a wrong template or a dead reward leave no error: the run goes on and unlearns. Each
function here takes numbers or texts and returns findings with the numbers and the known causes; none reads a
file.
"""

from __future__ import annotations

import math
import statistics
import unicodedata
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

Level = Literal["stop", "alarm"]


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it must be. `stop`: go no further; `alarm`: tell somebody."""

    gate: str
    level: Level
    message: str
    numbers: Mapping[str, float]
    causes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.gate}: {self.message}. Known causes: {'; '.join(self.causes)}"


@dataclass(frozen=True)
class Bounds:
    """What is still accepted. Shares are of completions, 0 to 1."""

    empty: float = 0.5
    one_symbol: float = 0.2
    repetitive: float = 0.5
    broken_text: float = 0.2
    wrong_thinking: float = 0.05
    k3_kl: float = 0.1
    """Mean over tokens of r - log r - 1, r the ratio of trainer to rollout probability. Engines that agree
    differ by rounding: below 0.01 in bfloat16."""
    log_ppl: float = 0.5
    """Mean over completions of the difference of the mean log-probability of a token."""
    flat_groups: float = 0.95
    """Share of groups whose rewards are all equal: they give no gradient."""
    kl: float = 1.0
    """KL divergence to the reference, nats per token."""
    collapse: float = 0.5
    """Share of the best mean reward that must be left."""
    window: int = 10
    """Steps of the means that are compared over time."""


DEFAULT = Bounds()

WEIGHT_SYNC = (
    "the weights that the rollout got are wrong: several server nodes before ms-swift 4.4.0 (ms-swift "
    "PR#9060), MoE layouts (ms-swift PR#8493), ZeRO-3 on several nodes (ms-swift#9619)"
)
GARBAGE = (WEIGHT_SYNC, "a kernel of the rollout engine fails on this GPU (ms-swift#9787)")
TEMPLATE = "server and trainer differ in enable_thinking or template: pass them to both alike"
NO_END = (
    "generation_config.json is missing or names another end token, so that nothing ends a completion",
    "max_completion_length is too short for this model",
)
REWARD = (
    "the reward functions judge something else than the completion: tags, thinking prefix",
    "prompts that are all too hard or all too easy: start from a model that solves 25 to 75 %",
)


def judge_completions(texts: Sequence[str], prefix: str = "", bounds: Bounds = DEFAULT) -> list[Finding]:
    """Look for garbage in completions.

    Args:
        texts: Completions as the rollout returned them.
        prefix: What the trainer's template puts before each ("<think>\\n", or an empty thinking block): a
            completion without it was made with other settings than it is trained with.
    """
    if not texts:
        return [
            Finding("completions", "stop", "there are none", {"count": 0}, ("the rollout returned nothing",))
        ]
    bodies = [text.removeprefix(prefix) for text in texts]
    checks: tuple[tuple[str, float, float, str, tuple[str, ...]], ...] = (
        (
            "empty completions",
            _share(not body.strip() for body in bodies),
            bounds.empty,
            "empty",
            ("the answers are lost between server and trainer", *GARBAGE),
        ),
        ("one symbol", _share(map(is_one_symbol, bodies)), bounds.one_symbol, "one symbol repeated", GARBAGE),
        ("repetition", _share(map(is_repetitive, bodies)), bounds.repetitive, "repeat themselves", GARBAGE),
        ("broken text", _share(map(is_broken, bodies)), bounds.broken_text, "not valid text",
         (*GARBAGE, "server and trainer have different tokenizers")),
        (
            "thinking",
            _share(not has_prefix(text, prefix) for text in texts),
            bounds.wrong_thinking,
            f"do not begin with {prefix!r}",
            (TEMPLATE,),
        ),
    )  # fmt: skip
    return [
        Finding(name, "stop", f"{share:.0%} of {len(texts)} completions: {what}", {"share": share}, causes)
        for name, share, bound, what, causes in checks
        if share > bound
    ]


def _share(found: Iterable[bool]) -> float:
    values = list(found)
    return sum(values) / len(values) if values else 0.0


def is_one_symbol(text: str) -> bool:
    """Whether one character, repeated without a break, makes up most of a text: `!!!!!!!!`."""
    body = "".join(text.split())
    if len(body) < 8:
        return False
    return max(len(list(run)) for _, run in groupby(body)) > len(body) / 2


def is_repetitive(text: str) -> bool:
    """Whether a text says the same again and again: it shrinks to less than a tenth when compressed. Prose of
    every language, code and mathematics shrink to a half or a third."""
    content = text.encode("utf-8", "replace")
    return len(content) >= 200 and len(zlib.compress(content)) < len(content) / 10


def is_broken(text: str) -> bool:
    """Whether a text holds bytes that are no UTF-8, halves of surrogate pairs, or control characters. A
    character cut at the end, where the length limit was reached, does not count."""
    body = (
        text.rstrip("\ufffd")
        if text.endswith("\ufffd") and len(text) - len(text.rstrip("\ufffd")) < 4
        else text
    )
    return any(
        character == "\ufffd"
        or "\ud800" <= character <= "\udfff"
        or (unicodedata.category(character) == "Cc" and character not in "\n\r\t")
        for character in body
    )


def has_prefix(text: str, prefix: str) -> bool:
    """Whether a completion begins as the trainer's template says. An opened thinking block that is closed at
    once is the prefix of the other mode."""
    if not text.startswith(prefix):
        return False
    opened = prefix.rstrip().endswith("<think>")
    return not (opened and text.removeprefix(prefix).lstrip().startswith("</think>"))


def judge_lengths(record: Mapping[str, Any], cap: int) -> list[Finding]:
    """Look for completions without a token, and for rollouts in which none ends before the limit.

    Args:
        record: A record of logging.jsonl: its `completions/mean_length` and `completions/min_length`, tokens.
        cap: max_completion_length.
    """
    mean, least = (number(record.get(f"completions/{name}_length")) for name in ("mean", "min"))
    if mean == 0:
        causes = ("the rollout returned nothing", "the answers are lost between server and trainer")
        return [Finding("length", "stop", "no completion has a token", {"mean": 0.0}, causes)]
    if least is not None and least >= cap:
        numbers = {"shortest": least, "limit": float(cap)}
        return [
            Finding("length", "stop", f"every completion is {cap} tokens long, the limit", numbers, NO_END)
        ]
    return []


def reward_groups(
    table: Mapping[str, Any], record: Mapping[str, Any], weights: Sequence[float]
) -> list[list[float]]:
    """Weighted rewards of one rollout, [prompts, completions of the prompt].

    Args:
        table: A line of completions.jsonl: a column per reward function, under its class name, beside others.
        record: A record of logging.jsonl, which names the functions in their order: `rewards/NAME/mean`.
        weights: Weights in the same order. A function that gives a completion no reward (None, NaN) counts
            for nothing; a completion to which none gives one has the reward NaN.
    """
    names = [key.split("/")[1] for key in record if key.startswith("rewards/") and key.endswith("/mean")]
    columns = [table[name] for name in names if name in table]
    if not columns or len(columns) != len(weights):
        return []
    groups: dict[str, list[float]] = {}
    for prompt, *rewards in zip(table["prompt"], *columns, strict=False):
        values = [
            weight * value
            for weight, given in zip(weights, rewards, strict=True)
            if (value := number(given)) is not None and not math.isnan(value)
        ]
        groups.setdefault(prompt, []).append(sum(values) if values else math.nan)
    return list(groups.values())


def judge_rewards(groups: Sequence[Sequence[float]], bounds: Bounds = DEFAULT) -> list[Finding]:
    """Look for rewards that teach nothing.

    Args:
        groups: Weighted rewards, [prompts, completions of the prompt].
    """
    rewards = [reward for group in groups for reward in group]
    wrong = sum(not math.isfinite(reward) for reward in rewards)
    if wrong or not rewards:
        causes = ("a reward function returns NaN or infinity, or None for a completion",)
        message = f"{wrong} of {len(rewards)} rewards are not finite"
        return [Finding("reward", "stop", message, {"not_finite": wrong}, causes)]
    if min(rewards) == max(rewards):
        message = f"all {len(rewards)} rewards are {rewards[0]:g}"
        return [Finding("reward", "stop", message, {"reward": rewards[0]}, REWARD)]
    flat = _share(min(group) == max(group) for group in groups)
    if flat > bounds.flat_groups:
        message = f"in {flat:.0%} of {len(groups)} groups all rewards are equal"
        return [Finding("groups", "alarm", message, {"share": flat}, REWARD)]
    return []


def judge_agreement(record: Mapping[str, Any], bounds: Bounds = DEFAULT) -> list[Finding]:
    """Compare the probabilities that trainer and rollout give to the same tokens.

    Args:
        record: A record of logging.jsonl with `--log_rollout_offpolicy_metrics true`: its
            `rollout_correction/k3_kl` and `rollout_correction/log_ppl_abs_diff`
            (swift/megatron/trainers/grpo_trainer.py:1520-1570).
    """
    limits = {"k3_kl": bounds.k3_kl, "log_ppl_abs_diff": bounds.log_ppl}
    found = {name: number(record.get(f"rollout_correction/{name}")) for name in limits}
    numbers = {name: value for name, value in found.items() if value is not None}
    if any(not value <= limits[name] for name, value in numbers.items()):
        listed = ", ".join(f"{name} {value:.3g} (limit {limits[name]:g})" for name, value in numbers.items())
        message = f"trainer and rollout disagree about the same tokens: {listed}"
        return [Finding("agreement", "stop", message, numbers, (WEIGHT_SYNC, TEMPLATE))]
    return []


def number(value: Any) -> float | None:
    """A number of a log record; None where there is none."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def judge_history(steps: Sequence[Mapping[str, Any]], cap: int, bounds: Bounds = DEFAULT) -> list[Finding]:
    """Watch a training: reward collapse, KL blow-up, length at the cap, groups without signal, no gradient,
    trainer and rollout that drift apart.

    Args:
        steps: Records of logging.jsonl, one per step (grpoflow.metrics.read_steps).
        cap: max_completion_length.
    """
    last = steps[-bounds.window :]
    return [
        *_not_finite(last),
        *_no_gradient(last, bounds),
        *_collapse(steps, bounds),
        *_blow_up(last, bounds),
        *_at_the_cap(last, cap),
        *_flat(last, bounds),
        *_apart(last, bounds),
    ]


Steps = Sequence[Mapping[str, Any]]


def _values(steps: Steps, name: str) -> list[float]:
    return [value for step in steps if (value := number(step.get(name))) is not None]


def _mean(steps: Steps, name: str) -> float | None:
    values = _values(steps, name)
    return statistics.fmean(values) if values else None


def _not_finite(last: Steps) -> list[Finding]:
    wrong = [n for n in ("loss", "grad_norm") if any(not math.isfinite(v) for v in _values(last, n))]
    if not wrong:
        return []
    causes = ("the learning rate is too high", "gradient_accumulation_fusion (ms-swift#8435)")
    return [Finding("finite", "stop", f"{' and '.join(wrong)} not finite", {}, causes)]


def _no_gradient(last: Steps, bounds: Bounds) -> list[Finding]:
    gradients = _values(last, "grad_norm")
    if len(gradients) < bounds.window or any(gradients):
        return []
    causes = (
        "all rewards of every group are equal",
        "the completions are lost or masked on the way to the loss",
    )
    return [
        Finding("gradient", "alarm", f"grad_norm 0 in {len(gradients)} steps", {"grad_norm": 0.0}, causes)
    ]


def _collapse(steps: Steps, bounds: Bounds) -> list[Finding]:
    rewards = _values(steps, "reward")
    if len(rewards) < 2 * bounds.window:
        return []
    means = [
        statistics.fmean(rewards[start : start + bounds.window])
        for start in range(len(rewards) - bounds.window + 1)
    ]
    best, now = max(means[: -bounds.window] or means[:1]), means[-1]
    noise = (_mean(steps[-bounds.window :], "reward_std") or 0.0) / math.sqrt(bounds.window)
    if now >= best - (1 - bounds.collapse) * abs(best) or best - now < 2 * noise:
        return []
    message = f"mean reward of {bounds.window} steps fell from {best:.3f} to {now:.3f}"
    causes = (
        WEIGHT_SYNC,
        "the policy left the region where the reward can tell (raise beta, lower the learning rate)",
    )
    return [Finding("reward collapse", "alarm", message, {"best": best, "now": now}, causes)]


def _blow_up(last: Steps, bounds: Bounds) -> list[Finding]:
    kl = _mean(last, "kl")
    if kl is None or kl <= bounds.kl:
        return []
    causes = ("the learning rate is too high or beta too low", WEIGHT_SYNC)
    return [Finding("KL", "alarm", f"KL to the reference is {kl:.3g} nats per token", {"kl": kl}, causes)]


def _at_the_cap(last: Steps, cap: int) -> list[Finding]:
    clipped, length = _mean(last, "completions/clipped_ratio"), _mean(last, "completions/mean_length")
    share = clipped if clipped is not None else (length or 0.0) / cap
    if share < 0.9:
        return []
    message = f"completions are {length or cap:.0f} tokens long on average, the limit is {cap}"
    return [Finding("length at the cap", "alarm", message, {"share": share, "mean": length or 0.0}, NO_END)]


def _flat(last: Steps, bounds: Bounds) -> list[Finding]:
    flat = _mean(last, "frac_reward_zero_std")
    if flat is None or flat <= bounds.flat_groups:
        return []
    message = f"in {flat:.0%} of the groups all rewards are equal"
    return [Finding("groups", "alarm", message, {"share": flat}, REWARD)]


def _apart(last: Steps, bounds: Bounds) -> list[Finding]:
    """As `judge_agreement`, over the last steps. They take several from one rollout, and each is farther from
    the policy that sampled it: that is no reason to stop."""
    names = [f"rollout_correction/{name}" for name in ("k3_kl", "log_ppl_abs_diff")]
    means = {name: mean for name in names if (mean := _mean(last, name)) is not None}
    return [replace(finding, level="alarm") for finding in judge_agreement(means, bounds)]
