"""Refusal to work where a real GPU is visible."""

from __future__ import annotations

from pathlib import Path

# The driver's control node and its list of GPUs. CUDA_VISIBLE_DEVICES and device nodes elsewhere say nothing:
# a Slurm cluster without GPUs can be set up with generic resources that only look like GPUs.
CONTROL_NODE = Path("/dev/nvidiactl")
DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")


def visible_gpu() -> Path | None:
    """The path that proves an NVIDIA GPU, or None."""
    if CONTROL_NODE.exists():
        return CONTROL_NODE
    return next(iter(sorted(DRIVER_GPUS.glob("*"))), None)


def refuse_real_gpu(module: str) -> None:
    """Raise RuntimeError when a GPU is visible, naming the module whose import asked for a stand-in."""
    proof = visible_gpu()
    if proof is not None:
        raise RuntimeError(
            f"import of {module}: the CPU environment replaces CUDA-only code and must not be used on a "
            f"machine with a GPU ({proof} exists). Use the GPU environment (envs/gpu) there."
        )
