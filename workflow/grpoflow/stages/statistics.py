"""Comparing two models on the same prompts. Scores are rewards, [prompts, samples]; NaN where a reward
function gave none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
DRAWN_AT_ONCE = 5_000_000
"""Random numbers in memory at a time: 40 MB."""

Scores = NDArray[np.float64]


def paired_difference(before: Scores, after: Scores, confidence: float, seed: int) -> dict[str, float]:
    """Estimate the mean of after - before, with a percentile bootstrap over prompts.

    Args:
        before, after: Rewards, [prompts, samples]; row i of both is prompt i.
        confidence: Coverage of the interval, e.g. 0.95.

    Samples of one prompt are not independent, so prompts are resampled, not completions (Efron and
    Tibshirani, An Introduction to the Bootstrap, 1993, chapter 8). A prompt that has no reward before or
    after is left out; `prompts` is the number of those that count.
    """
    differences = mean_of_prompts(after) - mean_of_prompts(before)
    differences = differences[np.isfinite(differences)]
    count = len(differences)
    if not count:
        nothing = float("nan")
        return {"mean": nothing, "low": nothing, "high": nothing, "confidence": confidence, "prompts": 0}
    generator = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    step = max(1, DRAWN_AT_ONCE // count)
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        means[start : start + size] = differences[generator.integers(count, size=(size, count))].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return {
        "mean": float(differences.mean()),
        "low": float(low),
        "high": float(high),
        "confidence": confidence,
        "prompts": count,
    }


def mean_of_prompts(scores: Scores) -> NDArray[np.float64]:
    """Mean reward of each prompt over the samples that have one; NaN if none has."""
    known = np.isfinite(scores)
    total = np.where(known, scores, 0.0).sum(axis=1)
    means: NDArray[np.float64] = np.full(len(scores), np.nan)
    np.divide(total, known.sum(axis=1), out=means, where=known.any(axis=1))
    return means


def pass_at(scores: Scores, threshold: float) -> dict[int, float]:
    """Estimate pass@k for k = 1, 2, 4, ... up to the number of samples.

    The share of prompts of which at least one of k completions reaches the threshold, by the unbiased
    estimator 1 - C(n - c, k) / C(n, k), n samples of which c pass (Chen et al., arXiv:2107.03374, eq. 1).
    """
    prompts, samples = scores.shape
    passed = (scores >= threshold).sum(axis=1)
    found: dict[int, float] = {}
    k = 1
    while prompts and k <= samples:
        fails = np.ones(prompts)
        for index in range(k):
            fails *= np.clip(samples - passed - index, 0, None) / (samples - index)
        found[k] = float((1 - fails).mean())
        k *= 2
    return found


def length_statistics(lengths: NDArray[np.int64], cap: int) -> dict[str, float]:
    """Mean, percentiles and the share of completions that reached the limit."""
    return {
        "mean": float(lengths.mean()),
        "p50": float(np.quantile(lengths, 0.5)),
        "p90": float(np.quantile(lengths, 0.9)),
        "max": float(lengths.max()),
        "at_the_cap": float((lengths >= cap).mean()),
    }
