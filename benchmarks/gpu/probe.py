"""A plugin of ms-swift (`--external_plugins`): memory and time of every phase of a training process.

MEMORY_SAMPLES names the files, one per rank: `.RANK` has the CUDA allocator every 0.2 s; `.phases.RANK`, of
GRPO, has every stretch of time with its phase, its seconds and the allocator's peak in it. The GPU is
synchronised where a phase begins or ends. What is in no other phase is the update; until the first `sync` it
is the start of the program. `load` is the loading of weights or of a checkpoint, `save` the writing of one,
without the Hugging Face weights, which are `export` (of `swift rlhf` all is `save`).
"""

import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

SECONDS = 0.2
# what ms-swift 4.6.0 times itself (rlhf_trainers/utils.py:567); names of Megatron-SWIFT and of swift rlhf
PHASES = {
    "_generate_completions": "rollout",
    "generate": "rollout",
    "_move_model_to_vllm": "sync",
    "compute_ref_old_logps": "logps",
    "_prepare_batch_inputs": "logps",
    "_score_completions": "reward",
}


def sample(path: str) -> None:
    with open(path, "a") as out:  # noqa: PTH123
        while True:
            time.sleep(SECONDS)
            if torch.cuda.is_initialized():
                stats = torch.cuda.memory_stats()
                row = {
                    "allocated": stats.get("allocated_bytes.all.current", 0),
                    "reserved": stats.get("reserved_bytes.all.current", 0),
                    "peak": stats.get("allocated_bytes.all.peak", 0),
                    "peak_reserved": stats.get("reserved_bytes.all.peak", 0),
                }
                out.write(json.dumps({"time": round(time.time(), 2), **row}) + "\n")
                out.flush()


class Stretches:
    """Cuts the time into stretches; phases nest."""

    def __init__(self, path: str):
        self.out = open(path, "a", buffering=1)  # noqa: PTH123, SIM115
        self.inside = ["update"]
        self.begun = time.time()

    def cut(self) -> None:
        on_gpu = torch.cuda.is_initialized()  # else a rank would make a context on GPU 0 while it starts
        if on_gpu:
            torch.cuda.synchronize()
        now = time.time()
        row = {
            "phase": self.inside[-1],
            "begun": round(self.begun, 3),
            "seconds": round(now - self.begun, 4),
            "peak": torch.cuda.max_memory_allocated() if on_gpu else 0,
            "allocated": torch.cuda.memory_allocated() if on_gpu else 0,
        }
        self.out.write(json.dumps(row) + "\n")
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.begun = now

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.cut()
        self.inside.append(name)
        try:
            yield
        finally:
            self.cut()
            self.inside.pop()


def watch_method(stretches: Stretches, owner: Any, name: str, phase: str) -> None:
    method = getattr(owner, name)

    @functools.wraps(method)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with stretches.phase(phase):
            return method(*args, **kwargs)

    setattr(owner, name, watched)


def watch_files(stretches: Stretches) -> None:
    """Loading and saving; ms-swift 4.6.0 megatron/trainers/base.py:118, 828, mcore-bridge 1.6.5
    bridge/gpt_bridge.py:2012, 2115, transformers trainer.py."""
    if "swift.megatron" in sys.modules:
        from mcore_bridge import GPTBridge  # noqa: PLC0415
        from swift.megatron.trainers.base import BaseMegatronTrainer  # noqa: PLC0415

        watch_method(stretches, BaseMegatronTrainer, "_load_checkpoint", "load")
        watch_method(stretches, BaseMegatronTrainer, "save_checkpoint", "save")
        watch_method(stretches, GPTBridge, "load_weights", "load")
        watch_method(stretches, GPTBridge, "save_weights", "export")
    else:
        import transformers  # noqa: PLC0415

        watch_method(stretches, transformers.Trainer, "_save_checkpoint", "save")


def watch_phases(path: str) -> None:
    from swift.rlhf_trainers import utils  # noqa: PLC0415

    timed, stretches = utils.profiling_context, Stretches(path)
    watch_files(stretches)

    @contextlib.contextmanager
    def watched(trainer: Any, name: str) -> Iterator[None]:
        phase = stretches.phase(PHASES[name]) if name in PHASES else contextlib.nullcontext()
        with phase, timed(trainer, name):
            yield

    utils.profiling_context = watched
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})  # not getattr(module, name): that would load lazy modules
        if names.get("profiling_context") is timed:  # imported before
            names["profiling_context"] = watched


if "MEMORY_SAMPLES" in os.environ and "LOCAL_RANK" in os.environ:
    base, rank = os.environ["MEMORY_SAMPLES"], os.environ["LOCAL_RANK"]
    threading.Thread(target=sample, args=(f"{base}.{rank}",), daemon=True).start()
    if "--rlhf_type" in sys.argv:
        watch_phases(f"{base}.phases.{rank}")
