"""The weights that a GRPO run made, as a Hugging Face directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from grpoflow.checkpoints import CHECKPOINT, TRACKER, CheckpointError, check_run_checkpoint
from grpoflow.commands.convert import merge_adapter
from grpoflow.config import Config
from grpoflow.files import read_json, write_json
from grpoflow.metrics import read_steps

from .base import Stage, StageFailed

TRAINING_FILES = {
    "args.json",
    "optimizer.pt",
    "scheduler.pt",
    "trainer_state.json",
    "training_args.bin",
    TRACKER,
}
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
CARRIED_OVER = {".json", ".jinja", ".txt", ".model"}


def chosen_checkpoint(config: Config, train: Mapping[str, Any]) -> Path:
    """The checkpoint that `export.checkpoint` names.

    Raises:
        StageFailed: the run has no such checkpoint, or no such metric.
        CheckpointError: it is not complete.
    """
    last = Path(train["checkpoint"])
    wanted = config.export.checkpoint
    if wanted == "last":
        path = last
    elif wanted == "best":
        path = _best(config, last.parent)
    else:
        path = last.with_name(f"checkpoint-{wanted}")
    if not path.is_dir():
        there = ", ".join(sorted(p.name for p in last.parent.glob("checkpoint-*") if p.is_dir()))
        raise StageFailed(f"export.checkpoint = {wanted}: there is no {path.name}; there are {there}")
    check_run_checkpoint(path)
    return path


def _best(config: Config, output: Path) -> Path:
    """The kept checkpoint before which the metric was best: one step is too noisy to go by."""
    metric = config.export.metric
    values = {step["step"]: step.get(metric) for step in read_steps(output / "logging.jsonl")}
    means: dict[Path, float] = {}
    for step, path in kept_checkpoints(output).items():
        before = [
            value
            for at in range(step - config.trainer.save_steps + 1, step + 1)
            if (value := values.get(at)) is not None
        ]
        if before:
            means[path] = fmean(before)
    if not means:
        known = sorted({name for step in read_steps(output / "logging.jsonl") for name in step})
        raise StageFailed(f"export.metric = {metric}: not in logging.jsonl; there are {', '.join(known)}")
    return max(means, key=lambda path: means[path])


def kept_checkpoints(output: Path) -> dict[int, Path]:
    """The complete checkpoints of a run by step, in order."""
    found: dict[int, Path] = {}
    for path in output.glob("checkpoint-*"):
        match = CHECKPOINT.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        try:
            check_run_checkpoint(path)
        except CheckpointError:
            continue
        found[int(match[1])] = path
    return dict(sorted(found.items()))


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
        stage.run(f"merge-{checkpoint.name}", merge_adapter(stage.config, start, checkpoint, source))
    link_model(source, target)
    carry_over(start, target)
    if source not in (checkpoint, start) and source.parent == target.parent:
        shutil.rmtree(source)


def link_model(source: Path, target: Path) -> None:
    """Make `target` with the model files of `source`, without what only its trainer needs."""
    target.mkdir()
    for path in _model_files(source):
        _link(path, target / path.name)


def assemble_adapter(checkpoint: Path, start: Path, target: Path) -> None:
    """Put a LoRA adapter into a directory of its own, as PEFT loads it. Both trainers write its files into
    the checkpoint.

    Raises:
        StageFailed: the checkpoint has none.
    """
    missing = [name for name in ADAPTER_FILES if not (checkpoint / name).is_file()]
    if missing:
        raise StageFailed(
            f"export.lora = adapter: {checkpoint} has no {' and no '.join(missing)}; export.lora: merged "
            "needs none"
        )
    target.mkdir()
    settings = read_json(checkpoint / ADAPTER_FILES[0])
    # what loads the adapter by itself looks for its base here
    settings["base_model_name_or_path"] = str(start.absolute())
    write_json(target / ADAPTER_FILES[0], settings)
    _link(checkpoint / ADAPTER_FILES[1], target / ADAPTER_FILES[1])


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
