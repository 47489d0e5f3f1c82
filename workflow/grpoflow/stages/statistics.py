"""Comparing two models on the same prompts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000

Scores = NDArray[np.float64]


def paired_difference(before: Scores, after: Scores, confidence: float, seed: int) -> dict[str, float]:
    """Estimate the mean of after - before, with a percentile bootstrap over prompts.

    Args:
        before, after: Rewards, [prompts, samples]; row i of both is prompt i.
        confidence: Coverage of the interval, e.g. 0.95.

    Samples of one prompt are not independent, so prompts are resampled, not completions (Efron and
    Tibshirani, An Introduction to the Bootstrap, 1993, chapter 8).
    """
    differences = after.mean(axis=1) - before.mean(axis=1)
    drawn = np.random.default_rng(seed).integers(len(differences), size=(RESAMPLES, len(differences)))
    means = differences[drawn].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return {
        "mean": float(differences.mean()),
        "low": float(low),
        "high": float(high),
        "confidence": confidence,
        "prompts": len(differences),
    }
