"""What a result depends on. An identity is a hash of convergence keys only: two experiments that agree in
them share the result, and a changed execution key re-runs nothing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from .base import keys_of_kind
from .root import Config
from .sft import SftConfig

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
    """Identity of the frozen prompts: data, model (its template and tokenizer) and reward columns."""
    keys = convergence_keys(config)
    return digest({name: keys[name] for name in DATA_KEYS})


def sft_data_id(config: Config) -> str:
    """Identity of the tokenised conversations: their file, the held-out prompts that are taken out of them,
    and what decides how they are tokenised. Not that of the prompts of GRPO: neither a reward nor a training
    prompt changes what SFT learns.

    Raises:
        ValueError: the configuration has no `sft` section.
    """
    sft, data = _sft(config), config.data
    return digest(
        {
            "model": convergence_keys(config)["model"],
            "data": [data.val, data.image_max_tokens, data.on_invalid],
            "sft": [sft.dataset, sft.max_length],
        }
    )


def sft_id(config: Config) -> str:
    """Identity of the SFT checkpoint.

    Raises:
        ValueError: the configuration has no `sft` section.
    """
    _sft(config)
    keys = convergence_keys(config)
    return digest({"model": keys["model"], "sft": keys["sft"], "data": sft_data_id(config)})


def mcore_id(config: Config) -> str:
    """Identity of the converted checkpoint: that of the checkpoint that is converted. With `convert.mode:
    direct` there is none, which must not be taken for one."""
    source = sft_id(config) if config.sft else digest({"model": convergence_keys(config)["model"]})
    return source if config.convert.mode == "mcore" else digest({"direct": source})


def run_hash(config: Config) -> str:
    """Identity of the GRPO run."""
    return digest(convergence_keys(config))


def _sft(config: Config) -> SftConfig:
    if config.sft is None:
        raise ValueError("this configuration has no sft section")
    return config.sft
