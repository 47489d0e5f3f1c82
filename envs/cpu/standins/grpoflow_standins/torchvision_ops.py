"""Schemas of torchvision's two C++ operators that its Python code names at import.

torchvision's wheel for CUDA fails to import beside a CPU build of torch (`RuntimeError: operator
torchvision::nms does not exist`, torchvision/_meta_registrations.py), and with it all of transformers. The
operators themselves stay absent; Qwen's image code calls none of them.
"""

from __future__ import annotations

from types import ModuleType

from torch import library

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: library.Library | None = None  # kept alive: the schemas go with the object


def apply(_module: ModuleType) -> None:
    global _library  # noqa: PLW0603
    if _library is None:
        _library = library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            _library.define(operator + _SCHEMA)
