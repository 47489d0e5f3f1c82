"""Decisions of the data-set stage, and which checkpoint is taken, without any program."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from grpoflow.config import Config, load_experiments, read_yaml
from grpoflow.config.load import ConfigError, merge
from grpoflow.stages import models
from grpoflow.stages.base import Stage, StageFailed
from grpoflow.stages.dataset import (
    _check_counts,
    _evaluates_in_training,
    _trim,
    frozen_dataset,
    pixel_environment,
)
from grpoflow.stages.models import chosen_checkpoint, kept_checkpoints
from grpoflow.stages.rewards import _examples, _no_longer_than, adversarial

ROOT = Path(__file__).parents[2]


def config_with(**overlay: Any) -> Config:
    return load_experiments(merge(read_yaml(ROOT / "config/config.yaml"), overlay))["main"]


def split(kept: int = 10, images: int = 0, **rejected: int) -> dict[str, Any]:
    return {"kept": kept, "rejected": rejected, "most_images": images}


def test_invalid_rows_are_dropped_or_refused() -> None:
    splits = {"val": split(), "train": split(duplicate=2)}
    _check_counts(config_with(), splits)
    with pytest.raises(StageFailed, match=r"on_invalid is refuse.*'train': {'duplicate': 2}"):
        _check_counts(config_with(data={"on_invalid": "refuse"}), splits)


def test_a_data_set_without_valid_rows_is_refused() -> None:
    with pytest.raises(StageFailed, match="no valid row is left of val"):
        _check_counts(config_with(), {"val": split(0, bad=3), "train": split()})


def test_more_images_than_the_server_accepts() -> None:
    splits = {"val": split(), "train": split(images=3)}
    with pytest.raises(StageFailed, match=r"Set rollout\.limit_images: 3"):
        _check_counts(config_with(), splits)
    _check_counts(config_with(rollout={"limit_images": 3}), splits)


def test_validation_inside_of_training_gets_whole_iterations(tmp_path: Path) -> None:
    """64 completions, 8 a prompt: an iteration takes 8 prompts; 400 = 50 x 8, and 403 leave 3 out."""
    config = config_with(trainer={"args": {"eval_steps": 10}})
    assert _evaluates_in_training(config)
    assert not _evaluates_in_training(config_with())
    (tmp_path / "val.jsonl").write_text("".join(f'{{"row": {n}}}\n' for n in range(403)))
    assert _trim(config, tmp_path) == {"prompts": 400, "left_out": 3, "iterations": 50}
    assert len((tmp_path / "eval.jsonl").read_text().splitlines()) == 400
    two = config_with(trainer={"args": {"eval_steps": 10, "num_generations_eval": 2}})
    assert _trim(two, tmp_path) == {"prompts": 384, "left_out": 19, "iterations": 12}


def test_what_decides_about_image_tokens_is_recorded() -> None:
    config = config_with(data={"image_max_tokens": 512}, cluster={"env": {"VIDEO_MAX_TOKEN_NUM": "64"}})
    assert pixel_environment(config) == {"IMAGE_MAX_TOKEN_NUM": "512", "VIDEO_MAX_TOKEN_NUM": "64"}


def test_other_pixels_than_were_measured_are_refused(tmp_path: Path) -> None:
    """Image features and image tokens would not match (ms-swift#8020)."""
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"pixels": {"IMAGE_MAX_TOKEN_NUM": "512"}}')

    def stage(limit: int) -> Stage:
        config = config_with(data={"image_max_tokens": limit})
        return Stage("evaluate", "main", config, {"dataset": str(manifest)}, tmp_path, tmp_path, {})

    assert frozen_dataset(stage(512))["pixels"]
    with pytest.raises(StageFailed, match=r"measured with {'IMAGE_MAX_TOKEN_NUM': '512'}, and now"):
        frozen_dataset(stage(1024))


def test_adversarial_completions() -> None:
    found = adversarial(config_with())
    assert found["empty"] == ""
    assert not found["not ASCII"].isascii()
    assert len(found["very long"]) > config_with().trainer.max_completion_length
    assert len(set(found.values())) == len(found)


def test_examples_of_right_and_wrong(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    row = {"messages": [{"role": "user", "content": "?"}], "right": "4", "wrong": ["5", ""]}
    path.write_text(json.dumps(row))
    (example,) = _examples(str(path), "<think>")
    assert (example["right"], example["wrong"]) == (["<think>4"], ["<think>5", "<think>"])
    path.write_text(json.dumps({**row, "wrong": None}) + "\n" + '{"messages": []}')
    with pytest.raises(StageFailed, match="row 1: right and wrong are completions"):
        _examples(str(path), "")
    assert _examples(None, "") == []


def test_the_examples_of_the_default_are_examples() -> None:
    assert len(_examples(config_with().data.reward_examples, "")) == 2


def test_a_program_that_hangs_is_ended() -> None:
    watch = _no_longer_than(0.01)
    assert watch() == ""
    time.sleep(0.02)
    with pytest.raises(StageFailed, match="hangs"):
        watch()


def test_only_megatron_reads_cached_prompts() -> None:
    with pytest.raises(ConfigError, match="grpo_cached"):
        config_with(data={"grpo_cached": True}, trainer={"backend": "swift"})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with checkpoints at 20, 40 and 60, of which 40 had the best reward before it and 60 is torn."""

    def check(path: Path) -> None:
        if path.name == "checkpoint-60":
            raise models.CheckpointError("torn")

    monkeypatch.setattr(models, "check_run_checkpoint", check)
    for step in (20, 40, 60):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-40-merged").mkdir()
    rewards = {step: 0.9 if step == 20 else 0.3 if step <= 20 else 0.6 for step in range(1, 61)}
    records = [{"loss": 0.0, "reward": r, "iteration": f"{s}/60"} for s, r in rewards.items()]
    (tmp_path / "logging.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def choose(run: Path, **export: Any) -> Path:
    config = config_with(export=export, trainer={"save_steps": 20})
    return chosen_checkpoint(config, {"checkpoint": str(run / "checkpoint-40")})


def test_the_checkpoint_that_is_asked_for(run: Path) -> None:
    assert list(kept_checkpoints(run)) == [20, 40]
    assert choose(run).name == "checkpoint-40"
    assert choose(run, checkpoint=20).name == "checkpoint-20"
    with pytest.raises(StageFailed, match="there is no checkpoint-10"):
        choose(run, checkpoint=10)


def test_the_best_checkpoint_is_that_of_the_best_mean(run: Path) -> None:
    """Step 20 itself had the highest reward, by chance; the steps before 40 were better."""
    assert choose(run, checkpoint="best").name == "checkpoint-40"
    with pytest.raises(StageFailed, match=r"export.metric = kl: not in logging.jsonl; there are .*reward"):
        choose(run, checkpoint="best", metric="kl")
