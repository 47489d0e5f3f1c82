"""The interval of the evaluation is what it says."""

import numpy as np
from grpoflow.stages.statistics import paired_difference


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    trials, covered = 100, 0
    for trial in range(trials):
        skill = rng.uniform(0.2, 0.6, size=(200, 1))
        before = (rng.random((200, 4)) < skill).astype(float)
        after = (rng.random((200, 4)) < skill + 0.1).astype(float)
        found = paired_difference(before, after, 0.9, trial)
        covered += found["low"] <= 0.1 <= found["high"]
    assert 0.82 <= covered / trials <= 0.97


def test_a_model_against_itself_has_no_difference() -> None:
    scores = np.random.default_rng(0).random((50, 8))
    found = paired_difference(scores, scores, 0.95, 0)
    assert (found["mean"], found["low"], found["high"]) == (0.0, 0.0, 0.0)


def test_prompts_are_resampled_not_completions() -> None:
    """One prompt with many equal completions is one observation: the interval stays wide."""
    difference = np.repeat(np.array([[1.0], [0.0], [0.0], [0.0]]), 1000, axis=1)
    found = paired_difference(np.zeros_like(difference), difference, 0.95, 0)
    assert found["low"] == 0.0
    assert found["high"] >= 0.5
