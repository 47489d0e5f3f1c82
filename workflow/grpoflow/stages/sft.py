"""Stage sft: the optional warm start."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

from grpoflow import metrics
from grpoflow.commands.distributed import ranks_of_nodes
from grpoflow.commands.sft import sft as sft_command
from grpoflow.fidelity import account
from grpoflow.files import fingerprint
from grpoflow.launch.ports import free_port
from grpoflow.plan.inputs import sft_parallel_of, sft_ranks_per_node

from .attempt import attempt_directory
from .base import Stage, StageFailed, finish
from .dataset import CONVERSATIONS, frozen_dataset
from .models import carry_over


def sft(stage: Stage) -> None:
    """Train on the cached conversations; the result is a Hugging Face directory `model`.

    Raises:
        StageFailed: nothing was learned (grad_norm 0), the checkpoint is not complete, or images would turn
            into other numbers of tokens than in the cached data set.
    """
    config = stage.config
    cached, frozen = Path(stage.input["dataset"]).parent / CONVERSATIONS, frozen_dataset(stage)
    with attempt_directory(stage) as work:
        run = work / "run"
        nodes, per_node, port = config.sft.nodes if config.sft else 1, sft_ranks_per_node(config), free_port()
        parallel = sft_parallel_of(config, nodes * per_node)
        commands = [
            sft_command(config, cached, run, ranks, parallel)
            for ranks in ranks_of_nodes(per_node, nodes, port)
        ]
        log = run / "logging.jsonl"
        stage.run("sft", commands, lambda: metrics.progress(log))
        steps = metrics.read_steps(log)
        check_learning(steps)
        checkpoint = last_checkpoint(run)
        lacks_mtp = config.sft is not None and config.sft.backend == "swift"  # transformers builds none
        accounting = account(
            checkpoint, Path(config.model.path), config.model.torch_dtype, may_lack_mtp=lacks_mtp
        )
        (work / "model").mkdir()
        for path in sorted(checkpoint.iterdir()):
            if path.is_file():
                path.rename(work / "model" / path.name)
        carry_over(Path(config.model.path), work / "model")
        log.rename(work / "logging.jsonl")
        shutil.rmtree(run)
        finish(
            stage,
            work,
            model="model",
            fingerprint=fingerprint(work / "model"),
            accounting=asdict(accounting),
            conversations={"rows": frozen["cached_rows"]["sft"], "sha256": frozen["sha256"]["sft.jsonl"]},
            steps=steps[-1]["step"],
            loss={"first": steps[0]["loss"], "last": steps[-1]["loss"]},
        )


def check_learning(steps: list[dict[str, float]]) -> None:
    """Refuse a training that moved nothing.

    Raises:
        StageFailed: no step was logged, or the gradient was 0 at every step. On a CPU a wrong gather makes
            that happen without any error.
    """
    if not steps:
        raise StageFailed("the trainer logged no step")
    if all(step.get("grad_norm") == 0 for step in steps):
        raise StageFailed("grad_norm is 0 at every step: nothing was trained")


def last_checkpoint(run: Path) -> Path:
    """Find the newest checkpoint of a training run.

    Raises:
        StageFailed: there is none.
    """
    link = run / "last-checkpoint"
    if not link.is_dir():
        raise StageFailed(f"the trainer left no {link}")
    return link.resolve()
