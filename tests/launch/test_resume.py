"""A changed layout: continued where that is exact, refused elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grpoflow.checkpoints import RunCheckpoint
from grpoflow.files import write_json
from grpoflow.launch import resume
from grpoflow.launch.resume import ResumeRefused, check_resume, layout_of
from grpoflow.launch.run import AttemptKey
from scene import Scene, launch

MEGATRON = {
    "trainer": {
        "nodes": 1,
        "parallel": {"tensor": 2},
        "global_batch_size": 64,
        "num_generations": 8,
        "micro_batch_size": 2,
    },
    "cluster": {"device": "cuda", "gpus_per_node": 8},
    "rollout": {"nodes": 1, "gpus": None},
}
SWIFT = {"trainer": {"backend": "swift", "deepspeed": "zero2", "micro_batch_size": 2}}


def resumed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: list[dict[str, Any]],
    change: dict[str, Any],
    step: int,
    later: dict[str, Any] | None = None,
) -> None:
    """Check a run that was saved with one configuration and goes on with a changed one, after a `later`
    attempt that saved nothing."""
    scene = Scene(tmp_path)
    run, saved = launch(scene, *before)
    layout = layout_of(saved.config, saved.placement.trainer_world_size)
    facts = {"started": 1.0, "resume_step": 0, "layout": layout}
    write_json(run.attempt(AttemptKey("1")).facts, facts)
    if later is not None:
        write_json(run.attempt(AttemptKey("2")).facts, later)
    newest = RunCheckpoint(run.output / f"checkpoint-{step}", step)
    monkeypatch.setattr(resume, "newest_checkpoint", lambda _: newest)
    check_resume(*launch(scene, *before, change))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"trainer": {"recompute": "full"}},
        {"trainer": {"micro_batch_size": 4}},
        {"trainer": {"micro_batch_size": 1, "nodes": 2}},
        {"rollout": {"nodes": 2}},
    ],
)
def test_exact_changes_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    resumed(tmp_path, monkeypatch, [MEGATRON], change, step=4)


def test_other_splits_of_the_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = {"trainer": {"parallel": {"tensor": 4, "pipeline": 2}}}
    with pytest.raises(ResumeRefused) as refused:
        resumed(tmp_path, monkeypatch, [MEGATRON], change, step=4)
    text = str(refused.value)
    assert "checkpoint-4 cannot be continued" in text
    assert "trainer.parallel.tensor: 2 when it was saved, 4 now; legal is 2" in text
    assert "trainer.parallel.pipeline: 1 when it was saved, 2 now; legal is 1" in text


def test_a_reshardable_checkpoint_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reshardable = {"trainer": {"args": {"dist_ckpt_optim_fully_reshardable": True}}}
    change = {"trainer": {"parallel": {"tensor": 4}}}
    resumed(tmp_path, monkeypatch, [MEGATRON, reshardable], change, step=4)


def test_the_layout_is_that_of_the_attempt_that_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one after it says reshardable, and ended before it saved a checkpoint that is."""
    later = {"started": 2.0, "resume_step": 4, "layout": {resume.RESHARDABLE: True}}
    change = {"trainer": {"parallel": {"tensor": 4}}}
    with pytest.raises(ResumeRefused, match="tensor: 2 when it was saved, 4 now"):
        resumed(tmp_path, monkeypatch, [MEGATRON], change, step=4, later=later)


def test_prompts_must_fill_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = {"trainer": {"micro_batch_size": 16}}
    with pytest.raises(ResumeRefused, match=r"must divide the 24 prompts.*legal is 2 on 8 GPUs"):
        resumed(tmp_path, monkeypatch, [MEGATRON], change, step=3)


def test_the_swift_backend_keeps_its_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResumeRefused, match=r"deepspeed: zero2 when it was saved, zero3 now"):
        resumed(tmp_path, monkeypatch, [SWIFT], {"trainer": {"deepspeed": "zero3"}}, step=4)
    with pytest.raises(ResumeRefused, match=r"world_size: 1 when it was saved, 3 now"):
        resumed(tmp_path / "b", monkeypatch, [SWIFT], {"cluster": {"gpus_per_node": 4}}, step=4)


def test_a_run_without_checkpoint_is_free(tmp_path: Path) -> None:
    check_resume(*launch(Scene(tmp_path), MEGATRON))
