"""Saves and stops at a step boundary before the job ends, all ranks agreeing.

An `--external_plugins` file of ms-swift with the callback `grpoflow_walltime`, for `megatron rlhf` and
`swift rlhf`. The supervisor says in a file when the job will end (it can change: an administrator prolongs a
job, a preemption shortens it); its path is in GRPOFLOW_DEADLINE. What was done is written to the file that
GRPOFLOW_STOPPED names. Without these variables, as in an export that reads the run's args.json, nothing
happens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

NAME = "grpoflow_walltime"
SLOWER_SAVE = 1.5
"""How much longer than the longest save so far the last one may take."""


class Deadline:
    """When to stop, from the times of the steps and saves so far. All times in seconds."""

    def __init__(self, told: Path | None, stopped: Path | None, steps_per_rollout: int = 1):
        self.told, self.stopped = told, stopped
        # a checkpoint between two rollouts would shift the boundaries of all later ones
        self.steps = steps_per_rollout
        self.last_end: float | None = None
        self.step_seconds: list[float] = []
        self.save_seconds = 0.0

    def is_near(self, iteration: int, now: float) -> bool:
        """Take note of a step that ended; say whether the next rollout would end too late."""
        if self.last_end is not None:
            # the first step compiles and tunes kernels: it counts only while it is the only one known
            self.step_seconds = [*self.step_seconds[-99:], now - self.last_end]
        self.last_end = now
        if self.told is None or iteration % self.steps:
            return False
        try:
            told = json.loads(self.told.read_text())
        except (OSError, ValueError):
            return False  # not written yet, or the filesystem does not answer: the next step asks again
        if told["end"] is None:
            return False
        longest = max(self.step_seconds[1:] or self.step_seconds, default=0.0)
        needed = self.steps * longest + SLOWER_SAVE * self.save_seconds
        return bool(now + max(needed, told["margin"]) > told["end"])

    def saved(self, now: float) -> None:
        """Take note of a save that ended."""
        if self.last_end is not None:
            self.save_seconds = max(self.save_seconds, now - self.last_end)
            self.last_end = now

    def tell(self, iteration: int) -> None:
        """Tell the supervisor that training stopped by itself, with a complete checkpoint."""
        if self.stopped is not None:
            temporary = self.stopped.with_suffix(".tmp")
            temporary.write_text(json.dumps({"step": iteration}))
            temporary.replace(self.stopped)


def deadline_of(args: Any) -> Deadline:
    def path(name: str) -> Path | None:
        return Path(os.environ[name]) if name in os.environ else None

    # Megatron-SWIFT counts optimizer steps here, swift rlhf counts micro batches
    steps = getattr(args, "steps_per_generation", None) if hasattr(args, "train_iters") else 1
    return Deadline(path("GRPOFLOW_DEADLINE"), path("GRPOFLOW_STOPPED"), steps or 1)


def agreed(near: bool) -> bool:
    """Whether any rank says so: one that stops alone leaves the others in a collective for ever."""
    import torch  # noqa: PLC0415 - this file is also imported by programs that have no use for it
    import torch.distributed as dist  # noqa: PLC0415
    from swift.utils import get_current_device  # noqa: PLC0415

    if not dist.is_initialized():
        return near
    flag = torch.tensor([int(near)], dtype=torch.int32, device=get_current_device())
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def register_megatron() -> None:
    from swift.megatron.callbacks.base import MegatronCallback  # noqa: PLC0415
    from swift.megatron.callbacks.mapping import megatron_callbacks_map  # noqa: PLC0415
    from swift.utils import is_master  # noqa: PLC0415

    class MegatronWalltime(MegatronCallback):  # type: ignore[misc]
        def __init__(self, trainer: Any):
            super().__init__(trainer)
            self.deadline = deadline_of(self.args)
            self.stops = False

        def on_step_end(self) -> None:
            near = self.deadline.is_near(self.state.iteration, time.time())
            if agreed(near):
                self.stops = self.state.should_save = True

        def on_save(self, output_dir: str) -> None:  # noqa: ARG002
            self.deadline.saved(time.time())
            if self.stops and self.state.iteration < self.args.train_iters:
                if is_master():
                    self.deadline.tell(self.state.iteration)
                # only now: the log line of this step, written before the save, says "step/train_iters"
                self.args.train_iters = self.state.iteration

    megatron_callbacks_map[NAME] = MegatronWalltime


def register_swift() -> None:
    from swift.callbacks import callbacks_map  # noqa: PLC0415
    from swift.callbacks.base import TrainerCallback  # noqa: PLC0415

    class SwiftWalltime(TrainerCallback):  # type: ignore[misc]
        def __init__(self, args: Any, trainer: Any):
            super().__init__(args, trainer)
            self.deadline = deadline_of(args)
            self.stops = False

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
            near = self.deadline.is_near(state.global_step, time.time())
            if agreed(near) and state.global_step < state.max_steps:
                self.stops = control.should_save = control.should_training_stop = True
            return control

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
            self.deadline.saved(time.time())
            if self.stops and state.is_world_process_zero:
                self.deadline.tell(state.global_step)
            return control

    callbacks_map[NAME] = SwiftWalltime


if "swift.megatron.arguments" in sys.modules:
    register_megatron()
elif "swift" in sys.modules:
    register_swift()
