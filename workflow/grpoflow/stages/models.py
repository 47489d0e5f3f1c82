"""The weights that a GRPO run made, as a Hugging Face directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpoflow.checkpoints import TRACKER, check_run_checkpoint
from grpoflow.commands.convert import merge_adapter
from grpoflow.config import Config

from .base import Stage, StageFailed

TRAINING_FILES = {
    "args.json",
    "optimizer.pt",
    "scheduler.pt",
    "trainer_state.json",
    "training_args.bin",
    TRACKER,
}
CARRIED_OVER = {".json", ".jinja", ".txt", ".model"}


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


def assemble_model(stage: Stage, checkpoint: Path, start: Path, target: Path) -> None:
    """Put the trained weights together as a Hugging Face directory, with a LoRA adapter merged into them.

    Megatron-SWIFT writes weights, configuration and tokenizer but no generation_config.json: without it
    nothing says which tokens end an answer, and every completion runs to its length limit. What the trainer
    does not write comes from the directory that training started from.
    """
    source = checkpoint
    if stage.config.trainer.tuner == "lora" and stage.config.trainer.backend == "megatron":
        source = checkpoint.with_name(f"{checkpoint.name}-merged")
    if stage.config.trainer.tuner == "lora" and stage.config.trainer.backend == "swift":
        source = target.with_name(f"{target.name}.merged")
        stage.run("merge", merge_adapter(stage.config, start, checkpoint, source))
    target.mkdir()
    for path in _model_files(source):
        _link(path, target / path.name)
    carry_over(start, target)
    if source not in (checkpoint, start) and source.parent == target.parent:
        shutil.rmtree(source)


def carry_over(start: Path, target: Path) -> None:
    """Copy what a trainer does not write (generation_config.json, processors) from where training started."""
    for path in _model_files(start):
        weights = path.suffix not in CARRIED_OVER or "safetensors" in path.name
        if not weights and not (target / path.name).exists():
            shutil.copy2(path, target / path.name)


def _model_files(directory: Path) -> list[Path]:
    return [
        path
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name not in TRAINING_FILES and not path.name.startswith("rng_state")
    ]


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)  # hundreds of gigabytes: no copy on the same filesystem
    except OSError:
        shutil.copy2(path, target)
