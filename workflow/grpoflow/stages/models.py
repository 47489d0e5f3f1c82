"""The weights that a GRPO run made, as a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpoflow.checkpoints import check_run_checkpoint
from grpoflow.commands.convert import merge_adapter
from grpoflow.config import Config

from .base import Stage, StageFailed


def chosen_checkpoint(config: Config, train: Mapping[str, Any]) -> Path:
    """The checkpoint that `export.checkpoint` names.

    Raises:
        StageFailed: the run has no such checkpoint.
        CheckpointError: it is not complete.
    """
    last = Path(train["checkpoint"])
    wanted = config.export.checkpoint
    path = last if wanted == "last" else last.with_name(f"checkpoint-{wanted}")
    if not path.is_dir():
        there = ", ".join(sorted(p.name for p in last.parent.glob("checkpoint-*") if p.is_dir()))
        raise StageFailed(f"export.checkpoint = {wanted}: there is no {path.name}; there are {there}")
    check_run_checkpoint(path)
    return path


def trained_model(stage: Stage, checkpoint: Path, start: Path, work: Path) -> Path:
    """Return the trained weights as a Hugging Face directory, with a LoRA adapter merged into them."""
    if stage.config.trainer.tuner == "full":
        return checkpoint
    if stage.config.trainer.backend == "megatron":
        return checkpoint.with_name(f"{checkpoint.name}-merged")
    merged = work / "merged"
    stage.run("merge", merge_adapter(stage.config, start, checkpoint, merged))
    return merged
