"""Which names are those of secrets: their values must not reach a file, an argument list or a message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
RUN_TOGETHER = ("APIKEY", "ACCESSKEY", "PRIVATEKEY", *SECRET_WORDS[2:])
HARMLESS = {"reft_layer_key", "teacher_tag_key", "vera_projection_prng_key"}
"""Arguments of ms-swift that end like a secret."""


def names_a_secret(name: str) -> bool:
    """Whether a value under this name, of a variable or of an argument, must not be written down.

    Of a variable (WANDB_API_KEY, HF_TOKEN_2) every word counts, of an argument (hub_token) the last one:
    moe_token_drop_policy is none. VIDEO_MAX_TOKEN_NUM counts tokens.
    """
    words = re.split(r"[^A-Z0-9]+", name.upper())
    if name in HARMLESS or words[-1] == "NUM":
        return False
    if any(part in "".join(words) for part in RUN_TOGETHER):
        return True
    return bool({"KEY", "TOKEN"}.intersection(words if name.isupper() else words[-1:])) and name != "key"


def secrets_in(value: Any) -> Iterator[str]:
    """The names of all secrets in nested mappings; one that is empty is none."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if names_a_secret(str(name)) and inner not in (None, "", False):
                yield str(name)
            else:
                yield from secrets_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from secrets_in(inner)
