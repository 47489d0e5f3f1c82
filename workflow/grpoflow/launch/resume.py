"""Whether a run can go on from its checkpoint with another layout, exactly: same optimizer, same data order.

What changes the learning itself is part of the run's identity: a changed value is another run.
"""

from __future__ import annotations

from typing import Any

from grpoflow.checkpoints import newest_checkpoint
from grpoflow.config import Config
from grpoflow.files import read_json
from grpoflow.plan.inputs import parallel_of

from .run import Launch, RunDirectory

SPLITS = {"tp": "tensor", "pp": "pipeline", "ep": "expert", "etp": "expert_tensor"}
RESHARDABLE = "dist_ckpt_optim_fully_reshardable"


class ResumeRefused(Exception):
    """The checkpoint cannot be continued with this layout. The message has legal values."""


def layout_of(config: Config, world_size: int) -> dict[str, Any]:
    """How the work of a trainer is split, as it is stored with every attempt."""
    trainer = config.trainer
    found: dict[str, Any] = {
        "backend": trainer.backend,
        "world_size": world_size,
        "micro_batch_size": trainer.micro_batch_size,
        "deepspeed": trainer.deepspeed,
        RESHARDABLE: bool(trainer.args.get(RESHARDABLE, False)),
    }
    if trainer.backend == "megatron":
        parallel = parallel_of(config, world_size)
        found |= {short: getattr(parallel, name) for short, name in {**SPLITS, "cp": "context"}.items()}
    return found


def check_resume(run: RunDirectory, launch: Launch) -> None:
    """Check the layout of the next attempt against that of the newest checkpoint.

    Raises:
        ResumeRefused: the run would not go on as it was.
    """
    newest = newest_checkpoint(run.output)
    saved = None if newest is None else saved_layout(run, newest.step)
    if newest is None or saved is None:
        return
    now = layout_of(launch.config, launch.placement.trainer_world_size)
    problems = differences(saved, now, launch.config, newest.step)
    if problems:
        found = "\n".join(f"  {problem}" for problem in problems)
        raise ResumeRefused(f"{newest.path.name} cannot be continued with this layout:\n{found}")


def saved_layout(run: RunDirectory, step: int) -> dict[str, Any] | None:
    """The layout of the attempt that saved the checkpoint of this step, of whatever job.

    Not of the last attempt: it may have changed the layout and ended before it saved anything.
    """
    facts = [read_json(path) for path in (run.path / "attempts").glob("*/attempt.json")]
    before = [attempt for attempt in facts if "layout" in attempt and attempt["resume_step"] < step]
    if not before:
        return None
    layout: dict[str, Any] = max(before, key=lambda attempt: float(attempt["started"]))["layout"]
    return layout


def differences(saved: dict[str, Any], now: dict[str, Any], config: Config, step: int) -> list[str]:
    """What forbids to continue a checkpoint of `saved` with `now`, each with a legal value."""
    if now["backend"] == "swift":
        return [
            f"{name}: {saved[name]} when it was saved, {now[name]} now; a checkpoint of the swift backend is "
            f"continued with {saved[name]} only"
            for name in ("world_size", "deepspeed")
            if saved[name] != now[name]
        ]
    found = []
    if not saved[RESHARDABLE]:
        found = [
            f"trainer.parallel.{name}: {saved[short]} when it was saved, {now[short]} now; legal is "
            f"{saved[short]}, since it was saved without trainer.args.{RESHARDABLE}: true"
            for short, name in SPLITS.items()
            if saved[short] != now[short]
        ]
    trainer = config.trainer
    prompts = step * trainer.global_batch_size // trainer.num_generations
    dp_size = now["world_size"] // (now["tp"] * now["pp"] * now["cp"])
    if prompts % (now["micro_batch_size"] * dp_size):
        # swift megatron/trainers/batch_sampler.py:119
        size, legal = now["micro_batch_size"], f"{saved['micro_batch_size']} on {saved['world_size']} GPUs"
        found.append(
            f"trainer.micro_batch_size: {size} x dp_size {dp_size} must divide the {prompts} prompts "
            f"that were consumed until step {step}; legal is {legal}"
        )
    return found
