"""What the evaluation of the default run says when there is nothing to say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from grpoflow.stages.statistics import paired_difference
from workspace import Workspace

pytestmark = pytest.mark.real


def test_the_model_against_itself_is_not_significant(default_run: tuple[Workspace, str]) -> None:
    """Two sets of four completions of the SFT model, against four of each model, of the same 400 prompts.

    At 99.9 %: an interval of 95 % leaves the true difference out in one run of twenty.
    """
    directory = default_run[0].path / "results/main/evaluation"

    def scores(model: str) -> np.ndarray:
        lines = (directory / f"{model}-sampled.rewards.jsonl").read_text().splitlines()
        rewards = [json.loads(line)["rewards"]["arithmetic_accuracy"] for line in lines]
        return np.array(rewards, dtype=float).reshape(-1, 8)

    before, after = scores("sft"), scores("grpo")
    itself = paired_difference(before[:, :4], before[:, 4:], 0.999, 0)
    assert itself["low"] <= 0 <= itself["high"]
    assert paired_difference(before[:, :4], after[:, :4], 0.999, 0)["low"] > 0


def test_every_gate_left_its_numbers(default_run: tuple[Workspace, str]) -> None:
    workspace = default_run[0]
    (conversations,) = (workspace.path / "results/shared/sft_data").glob("*/manifest.json")
    manifest = workspace.json(str(conversations.relative_to(workspace.path)))
    assert manifest["counts"] == {"sft": 6000, "rejected": 0}
    assert manifest["cached_rows"] == {"sft": 6000}
    (dataset,) = (workspace.path / "results/shared/dataset").glob("*/manifest.json")
    manifest = workspace.json(str(dataset.relative_to(workspace.path)))
    assert manifest["counts"] == {"val": 400, "train": 560, "rejected": 0}
    assert manifest["splits"]["train"]["prompt_tokens"]["max"] <= 128
    assert manifest["rewards"]["arithmetic_accuracy"]["seconds"] < 30
    (mcore,) = (workspace.path / "results/shared/mcore").glob("*/manifest.json")
    accounting = workspace.json(str(mcore.relative_to(workspace.path)))["accounting"]
    assert accounting["absent"] == {}
    export = workspace.json("results/main/export/manifest.json")
    assert export["checks"]["accounting"]["absent"] == {}
    assert export["checks"]["logits"]["largest_difference"] <= export["checks"]["logits"]["tolerance"]
    assert set(export["sha256"]) == {p.name for p in (workspace.path / "results/main/export/model").iterdir()}
    evaluation = workspace.json("results/main/evaluation/manifest.json")
    assert evaluation["findings"] == []
    passed = evaluation["sampled"]["grpo"]["pass_at"]["arithmetic_accuracy"]
    assert passed["1"] <= passed["2"] <= passed["4"] <= passed["8"]
