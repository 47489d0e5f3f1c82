"""The GPUs of this machine, where no Slurm gives them to one job at a time: runs take turns.

Two experiments of a sweep start side by side under the local profile, and both would load their weights onto
the same GPUs. The kernel gives a lock back when its process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from grpoflow.config import Config

SHOWN = "GRPOFLOW_VISIBLE_GPUS"
"""CUDA_VISIBLE_DEVICES of the person who runs: submitit empties that variable in its local jobs."""


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Names of the GPUs that CUDA_VISIBLE_DEVICES shows; empty where it says nothing."""
    told = environment.get(SHOWN) or environment.get("CUDA_VISIBLE_DEVICES", "")
    return [gpu.strip() for gpu in told.split(",") if gpu.strip()]


def gpus_of_run(config: Config, environment: Mapping[str, str]) -> list[str]:
    """Names of the GPUs that a run on this machine takes: those that are shown to it, or the first ones."""
    if config.cluster.device == "cpu":
        return []
    first = [str(index) for index in range(config.cluster.gpus_per_node)]
    return visible_gpus(environment) or first


def take_gpus(gpus: list[str], directory: Path | None = None) -> ExitStack | None:
    """Take all of the GPUs until the result is closed; None where another run of this user has one."""
    directory = directory or Path(tempfile.gettempdir()) / f"grpoflow-gpus-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as held:
        for gpu in gpus:
            lock = held.enter_context((directory / gpu.replace("/", "_")).open("w", encoding="utf-8"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
        return held.pop_all()
