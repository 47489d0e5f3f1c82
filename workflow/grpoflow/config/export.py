"""Section `export`: the model that people get."""

from __future__ import annotations

from typing import Literal

from .base import Section, convergence


class ExportConfig(Section):
    checkpoint: Literal["last"] | int = convergence("last")
    """Step to export, or the last one."""
