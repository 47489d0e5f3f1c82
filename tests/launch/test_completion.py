"""A training is complete when its checkpoint and its log say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpoflow.config import Config
from grpoflow.launch.completion import TrainingIncomplete, is_complete, verify_training
from safetensors.numpy import save_file
from scene import Scene

LENGTH = "completions/mean_length"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Scene(tmp_path).config({"trainer": {"train_steps": 150, "logging_steps": 20, "save_steps": 50}})


def trained(output: Path, saved: int, logging_steps: int = 1, **changes: Any) -> Path:
    """What a training of 150 steps leaves, that logs and saves as both backends do."""
    checkpoint = output / f"checkpoint-{saved}"
    checkpoint.mkdir(parents=True)
    save_file({"weight": np.zeros(3, "f4")}, checkpoint / "model.safetensors")
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": saved}))
    (output / "last-checkpoint").symlink_to(checkpoint.name)
    record = {"loss": 0.1, "grad_norm": 1.0, "reward": 1.0, LENGTH: 9.0} | changes
    logged = [step for step in range(1, saved + 1) if step == 1 or step % logging_steps == 0]
    lines = [json.dumps(record | {"iteration": f"{step}/150"}) for step in logged]
    (output / "logging.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return output


@pytest.mark.parametrize("logging_steps", [1, 20, 1000])
@pytest.mark.parametrize("length", [{"train_steps": 150}, {"train_steps": None, "epochs": 2}])
def test_the_last_step_need_not_be_logged(
    config: Config, tmp_path: Path, logging_steps: int, length: dict[str, Any]
) -> None:
    """150 is no multiple of 20: neither backend logs it."""
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update=length)})
    output = trained(tmp_path / "output", 150, logging_steps)
    assert verify_training(config, output).step == 150


@pytest.mark.parametrize(
    ("saved", "changes", "why"),
    [
        (100, {}, "checkpoint-100, not checkpoint-150; the last step in the log is 100"),
        (150, {"grad_norm": 0}, "grad_norm is 0"),
        (150, {LENGTH: 0}, "the completions were lost"),
    ],
)
def test_what_is_incomplete_says_why(
    config: Config, tmp_path: Path, saved: int, changes: dict[str, Any], why: str
) -> None:
    output = trained(tmp_path / "output", saved, **changes)
    with pytest.raises(TrainingIncomplete, match=why):
        verify_training(config, output)
    assert not is_complete(config, output)


def test_a_checkpoint_alone_is_no_training(config: Config, tmp_path: Path) -> None:
    output = trained(tmp_path / "output", 150)
    (output / "logging.jsonl").unlink()
    with pytest.raises(TrainingIncomplete, match="holds no training step"):
        verify_training(config, output)
