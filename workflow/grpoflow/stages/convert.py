"""Stage convert_to_mcore: Hugging Face to Megatron-core, proven by converting back."""

from __future__ import annotations

import itertools
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpoflow.checkpoints import check_hf_directory, check_mcore_directory
from grpoflow.commands.convert import to_hf, to_mcore
from grpoflow.commands.distributed import Ranks, ranks_of_nodes
from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.fidelity import account
from grpoflow.files import fingerprint
from grpoflow.launch.ports import free_port
from grpoflow.plan.conversion import conversion_of

from .attempt import attempt_directory
from .base import Stage, StageFailed, finish, manifest_of
from .inside import compare_tensors, convert_precision

MEAN_DIFFERENCE = 0.1
"""Largest mean difference of a logit that ms-swift calls right (swift/megatron/utils/convert_utils.py)."""


def convert_to_mcore(stage: Stage) -> None:
    """Convert the starting checkpoint and compare every tensor after a round trip.

    With `convert.mode: direct` the trainer reads the Hugging Face directory, and only that is checked.

    Raises:
        CheckpointError, ProgramFailed: a tensor is missing or differs after HF -> mcore -> HF.
        StageFailed: the logits of both models differ.
    """
    source = start_directory(stage)
    facts: dict[str, Any] = {
        "mode": stage.config.convert.mode,
        "source": str(source),
        "source_fingerprint": fingerprint(source),
        "tensors": len(check_hf_directory(source)),
    }
    with attempt_directory(stage) as work:
        if stage.config.convert.mode == "direct":
            finish(stage, work, checkpoint=None, **facts)
        else:
            finish(stage, work, checkpoint="checkpoint", **facts, **_convert(stage, source, work))


def _convert(stage: Stage, source: Path, work: Path) -> dict[str, Any]:
    config = stage.config
    checkpoint, back = work / "checkpoint", work / "round-trip"
    conversion = conversion_of(config)
    ranks = conversion_ranks(config)
    parallel = conversion.parallel
    stage.run("to_mcore", [to_mcore(config, source, checkpoint, at, parallel) for at in ranks])
    check_mcore_directory(checkpoint)
    # what Megatron does not hold must not be copied from the source here: the comparison would prove nothing
    commands = [
        to_hf(config, checkpoint, source, back, at, parallel, save_missing_weights=False) for at in ranks
    ]
    stage.run("to_hf", commands)
    accounting = account(back, source, config.model.torch_dtype, may_lack_mtp=True)
    absent = list(itertools.chain.from_iterable(accounting.absent.values()))
    compare_tensors(stage, back, source, absent)
    shutil.rmtree(back)
    stage.say(f"{accounting.same + sum(accounting.converted.values())} tensors equal after a round trip")
    facts: dict[str, Any] = {"accounting": asdict(accounting)}
    # torch_dist may be loaded with another layout (Megatron-SWIFT docs, Quick-start)
    layout = parallel or Parallel()
    facts["layout"] = {"format": "torch_dist", **layout.model_dump(exclude={"expert_tensor"})}
    if config.convert.test_precision:
        facts["precision"] = _precision(stage, source, work)
    return facts


def _precision(stage: Stage, source: Path, work: Path) -> dict[str, float]:
    """Compare the logits of the Hugging Face and of the Megatron model.

    Raises:
        StageFailed: they differ by more than rounding.
    """
    convert_precision(stage, source, work / "precision")
    shutil.rmtree(work / "precision", ignore_errors=True)
    log = (stage.logs / "convert_precision.log").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"mean_diff \(with loss\): (\S+), max_diff \(with loss\): (\S+)", log)
    if found is None:
        raise StageFailed("--test_convert_precision printed no mean_diff")
    mean, largest = float(found[1]), float(found[2])
    if not mean < MEAN_DIFFERENCE:
        raise StageFailed(f"the logits differ by {mean:.3g} on average (limit {MEAN_DIFFERENCE})")
    return {"mean_difference": mean, "largest_difference": largest}


def conversion_ranks(config: Config) -> list[Ranks]:
    """The ranks of `megatron export`, of each node."""
    found = conversion_of(config)
    return ranks_of_nodes(found.nproc_per_node, found.nodes, free_port())


def start_directory(stage: Stage) -> Path:
    """The Hugging Face directory that GRPO starts from."""
    start = Path(stage.input["start"])
    if stage.config.sft is None:
        return start.parent
    return start.parent / str(manifest_of(start)["model"])
