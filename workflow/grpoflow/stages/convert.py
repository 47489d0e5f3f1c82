"""Stage convert_to_mcore: Hugging Face to Megatron-core, proven by converting back."""

from __future__ import annotations

import shutil
from pathlib import Path

from grpoflow.checkpoints import check_hf_directory, check_mcore_directory
from grpoflow.commands.convert import to_hf, to_mcore
from grpoflow.commands.distributed import Ranks
from grpoflow.files import fingerprint
from grpoflow.launch.ports import free_port

from .base import Stage, attempt_directory, finish, manifest_of
from .inside import compare_tensors


def convert_to_mcore(stage: Stage) -> None:
    """Convert the starting checkpoint and compare every tensor after a round trip.

    Raises:
        CheckpointError, ProgramFailed: a tensor is missing or differs after HF -> mcore -> HF.
    """
    config = stage.config
    source = start_directory(stage)
    with attempt_directory(stage) as work:
        checkpoint, back = work / "checkpoint", work / "round-trip"
        stage.run("to_mcore", to_mcore(config, source, checkpoint, Ranks(master_port=free_port())))
        check_mcore_directory(checkpoint)
        stage.run("to_hf", to_hf(config, checkpoint, source, back, Ranks(master_port=free_port())))
        compared = check_hf_directory(back, source)
        compare_tensors(stage, back, source)
        shutil.rmtree(back)
        stage.say(f"{len(compared)} tensors equal after a round trip")
        finish(
            stage,
            work,
            checkpoint="checkpoint",
            source=str(source),
            source_fingerprint=fingerprint(source),
            tensors_compared=len(compared),
        )


def start_directory(stage: Stage) -> Path:
    """The Hugging Face directory that GRPO starts from."""
    start = Path(stage.input["start"])
    if stage.config.sft is None:
        return start.parent
    return start.parent / str(manifest_of(start)["model"])
