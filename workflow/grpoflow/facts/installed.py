"""What is installed in the training environment, read from the names of its metadata directories."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=8)
def installed_packages(prefix: str) -> dict[str, str]:
    """Versions by package name ("megatron-core"), or nothing where the prefix is not on this machine."""
    found = {}
    for path in Path(prefix).glob("lib/python3*/site-packages/*.dist-info"):
        name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
        if version[:1].isdigit():
            found[name.replace("_", "-").lower()] = version
    return found
