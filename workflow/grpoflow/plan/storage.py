"""Disk that checkpoints take."""

from dataclasses import dataclass

from grpoflow.models.architecture import Architecture
from grpoflow.models.counts import count_parameters

HF_BYTES, MCORE_BYTES, OPTIMIZER_BYTES = 2, 2, 12
"""Per parameter: bf16 safetensors, bf16 distributed checkpoint, fp32 master weight and two moments."""


@dataclass(frozen=True)
class Storage:
    """Bytes on disk of one run: of one checkpoint, of those kept at the end, and at the peak."""

    per_checkpoint: int
    kept: int
    peak: int


def checkpoint_bytes(
    arch: Architecture,
    *,
    save_optimizer: bool = True,
    trains_mtp: bool = False,
    trains_vision: bool = False,
    adapter_parameters: int | None = None,
) -> int:
    """One Megatron checkpoint.

    Full training: 2 B of safetensors, 2 B of mcore weights and 12 B of optimizer per parameter; the frozen
    vision tower has no optimizer, and an untrained multi-token prediction is not stored. With LoRA
    (``adapter_parameters``) the safetensors are the merged model, and mcore weights and optimizer cover the
    adapter. Without the optimizer only the safetensors are kept (swift megatron/trainers/base.py:837).
    """
    counts = count_parameters(arch)
    stored = counts.text + counts.visual + (counts.mtp if trains_mtp else 0)
    if not save_optimizer:
        return HF_BYTES * stored
    if adapter_parameters is not None:
        return HF_BYTES * stored + (MCORE_BYTES + OPTIMIZER_BYTES) * adapter_parameters
    trained = stored - (0 if trains_vision else counts.visual)
    return (HF_BYTES + MCORE_BYTES) * stored + OPTIMIZER_BYTES * trained


def run_storage(checkpoint: int, steps: int, save_steps: int, save_total_limit: int | None) -> Storage:
    """Checkpoints of a run of ``steps`` steps, ``checkpoint`` bytes each: one every ``save_steps`` and one at
    the end.

    The oldest goes after the new one is written (swift megatron/trainers/base.py:903), so that at the peak
    there is one more than is kept.
    """
    written = -(-steps // save_steps)
    kept = written if save_total_limit is None else min(written, save_total_limit)
    return Storage(
        per_checkpoint=checkpoint, kept=kept * checkpoint, peak=min(written, kept + 1) * checkpoint
    )
