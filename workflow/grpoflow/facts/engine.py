"""What the vLLM of the training environment takes, read from its source without starting it."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

CLASSES = ("EngineArgs", "AsyncEngineArgs")


@lru_cache(maxsize=8)
def engine_arguments(prefix: str) -> frozenset[str]:
    """Names of the arguments of vLLM's engine (vllm/engine/arg_utils.py), or nothing where the prefix is not
    on this machine, or vLLM is written in another way."""
    for path in Path(prefix).glob("lib/python3*/site-packages/vllm/engine/arg_utils.py"):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        return frozenset(
            field.target.id
            for made in tree.body
            if isinstance(made, ast.ClassDef) and made.name in CLASSES
            for field in made.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        )
    return frozenset()
