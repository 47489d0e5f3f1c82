"""Section `export`: the model that people get."""

from __future__ import annotations

from typing import Literal

from .base import Section, convergence


class ExportConfig(Section):
    checkpoint: Literal["last"] | int = convergence("last")
    """Step to export, or the last one."""

    torch_dtype: Literal["bfloat16", "float16", "float32"] | None = convergence(None)
    """Type of the exported weights; that of training by default."""
