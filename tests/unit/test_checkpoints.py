"""Checkpoints that are torn, and those that are put out of the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from grpoflow.checkpoints import (
    CheckpointError,
    RunCheckpoint,
    check_run_checkpoint,
    set_aside_incomplete,
    tensors,
)
from safetensors.numpy import save_file


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint-4"
    directory.mkdir()
    save_file({"a": np.zeros(4, np.float32)}, directory / "model.safetensors")
    (directory / "trainer_state.json").write_text('{"global_step": 4}')
    return directory


@pytest.mark.parametrize("torn", ["", '{"weight_map": ', "[]", "{}", '{"weight_map": null}'])
def test_an_index_that_cannot_be_read_is_said(saved: Path, torn: str) -> None:
    (saved / "model.safetensors.index.json").write_text(torn)
    with pytest.raises(CheckpointError, match=r"index\.json cannot be read"):
        tensors(saved)


@pytest.mark.parametrize("torn", ["", "[]", "{}", "null"])
def test_a_state_that_cannot_be_read_is_no_checkpoint(saved: Path, torn: str) -> None:
    """A run resumes from the one before; a traceback would end every later attempt."""
    check_run_checkpoint(saved)
    (saved / "trainer_state.json").write_text(torn)
    with pytest.raises(CheckpointError, match="is not complete"):
        check_run_checkpoint(saved)


def test_a_merged_model_goes_with_its_checkpoint(tmp_path: Path, saved: Path) -> None:
    """Left behind it would be taken for that of the next checkpoint of the same step."""
    for name in ("checkpoint-8", "checkpoint-8-merged", "checkpoint-4-merged"):
        (tmp_path / name).mkdir()
    (aside,) = set_aside_incomplete(tmp_path, RunCheckpoint(saved, 4))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        *("checkpoint-4", "checkpoint-4-merged", "last-checkpoint"),
        *(aside.name, f"{aside.name}-merged"),
    }
