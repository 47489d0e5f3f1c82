"""What a result depends on. An identity is a hash of convergence keys only: two experiments that agree in
them share the result, and a changed execution key re-runs nothing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from .base import keys_of_kind
from .root import Config

DATA_KEYS = ("data", "model", "rewards")


def convergence_keys(config: Config) -> dict[str, Any]:
    """Everything that makes up the identity of a GRPO run."""
    keys = keys_of_kind(config, "convergence", later_defaults=False)
    return {name: value for name, value in keys.items() if name not in ("evaluate", "export")}


def digest(value: Any) -> str:
    """Hash plain data to 12 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def dataset_id(config: Config) -> str:
    """Identity of the frozen data set: data, model (its template and tokenizer) and reward columns."""
    keys = convergence_keys(config)
    return digest({name: keys[name] for name in DATA_KEYS} | {"sft": config.sft and config.sft.dataset})


def sft_id(config: Config) -> str:
    """Identity of the SFT checkpoint.

    Raises:
        ValueError: the configuration has no `sft` section.
    """
    if config.sft is None:
        raise ValueError("this configuration has no sft section")
    keys = convergence_keys(config)
    return digest({"model": keys["model"], "sft": keys["sft"]})


def mcore_id(config: Config) -> str:
    """Identity of the converted checkpoint: that of the checkpoint that is converted."""
    return sft_id(config) if config.sft else digest({"model": convergence_keys(config)["model"]})


def run_hash(config: Config) -> str:
    """Identity of the GRPO run."""
    return digest(convergence_keys(config))
