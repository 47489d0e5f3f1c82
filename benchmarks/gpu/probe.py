"""A plugin of ms-swift (`--external_plugins`): memory and time of every phase of a training process.

MEMORY_SAMPLES names the files, one per rank: `.RANK` has the CUDA allocator every 0.2 s; `.phases.RANK` has
every stretch of time with its phase, its seconds and the allocator's peak in it. The GPU is synchronised
where a phase begins or ends.

Phases of GRPO are cut in the same places of both trainers. `rollout` has the sleeping and waking of the
engine and the offloading in it, but not `sync`, the weights to vLLM. `logps` are the passes of the policy
and of the reference without a gradient, `reward` the reward functions, `prepare` what else is between the
prompts and the batch: encoding, padding, advantages. What is in no other phase is the update; until the first
`sync` it is the start of the program. `load` is the loading of weights or of a checkpoint, `save` the writing
of one, without the Hugging Face weights, which are `export` (of `swift rlhf` all is `save`). Of SFT with
Megatron every `step` is one stretch, and what is in none is the rest.
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
    "_generate_and_score_completions": "prepare",
    "_generate_completions": "rollout",
    "_move_model_to_vllm": "sync",
    "compute_ref_old_logps": "logps",
    "_get_per_token_logps_and_entropies": "logps",
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

    def __init__(self, path: str, outside: str):
        self.out = open(path, "a", buffering=1)  # noqa: PTH123, SIM115
        self.inside = [outside]
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


def watch_untimed(stretches: Stretches) -> None:
    """What only the other trainer times itself; swift megatron/trainers/grpo_trainer.py:242,
    rlhf_trainers/rollout_mixin.py:1163."""
    if "swift.megatron" in sys.modules:
        from swift.megatron.trainers.grpo_trainer import MegatronGRPOTrainer  # noqa: PLC0415

        watch_method(stretches, MegatronGRPOTrainer, "_generate_and_score_completions", "prepare")
    else:
        from swift.rlhf_trainers.rollout_mixin import RolloutTrainerMixin  # noqa: PLC0415

        watch_method(stretches, RolloutTrainerMixin, "_generate_completions", "rollout")


def watch_phases(path: str) -> None:
    from swift.rlhf_trainers import utils  # noqa: PLC0415

    timed, stretches = utils.profiling_context, Stretches(path, "update")
    watch_files(stretches)
    watch_untimed(stretches)

    @contextlib.contextmanager
    def watched(trainer: Any, name: str) -> Iterator[None]:
        phase = PHASES.get(name)
        if phase == "logps" and "prepare" not in stretches.inside:
            phase = None  # swift rlhf calls the same method for the loss, which is the update
        with stretches.phase(phase) if phase else contextlib.nullcontext(), timed(trainer, name):
            yield

    utils.profiling_context = watched
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})  # not getattr(module, name): that would load lazy modules
        if names.get("profiling_context") is timed:  # imported before
            names["profiling_context"] = watched


def not_finite(trainer: Any) -> dict[str, list[str]]:
    """Parameters of a Megatron trainer whose value or gradient is not finite."""
    found: dict[str, list[str]] = {"value": [], "gradient": []}
    for model in trainer.unwrapped_models:
        for name, parameter in model.named_parameters():
            gradient = getattr(parameter, "main_grad", None)
            for kind, tensor in (("value", parameter), ("gradient", gradient)):
                if tensor is not None and not bool(torch.isfinite(tensor).all()):
                    found[kind].append(name)
    return found


def watch_steps(path: str) -> None:
    """Every step of SFT; swift megatron/trainers/base.py:991. When Megatron refuses a gradient, the log has
    what it refused."""
    from swift.megatron.trainers.base import BaseMegatronTrainer  # noqa: PLC0415

    step = BaseMegatronTrainer.train_step

    @functools.wraps(step)
    def explained(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(trainer, *args, **kwargs)
        except RuntimeError:
            print("not finite: " + json.dumps(not_finite(trainer)), flush=True)
            raise

    BaseMegatronTrainer.train_step = explained
    watch_method(Stretches(path, "rest"), BaseMegatronTrainer, "train_step", "step")


if "MEMORY_SAMPLES" in os.environ and "LOCAL_RANK" in os.environ:
    base, rank = os.environ["MEMORY_SAMPLES"], os.environ["LOCAL_RANK"]
    threading.Thread(target=sample, args=(f"{base}.{rank}",), daemon=True).start()
    if "--rlhf_type" in sys.argv:
        watch_phases(f"{base}.phases.{rank}")
    elif "swift.megatron" in sys.modules:
        watch_steps(f"{base}.phases.{rank}")
