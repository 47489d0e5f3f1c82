"""Which files a torch_dist checkpoint consists of and how long each must be, read without torch.

The `.metadata` of torch.distributed.checkpoint is a pickle that names, for every tensor, its file, offset and
length. It is read here with stand-ins for all of its classes, so that nothing in it can be executed.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any


class _Anything:
    """Stands for every class and function that the pickle names; keeps attributes and nothing else."""

    def __new__(cls, *_: Any, **__: Any) -> _Anything:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                vars(self).update(part)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ARG002 - the signature of pickle
        return _Anything


def shard_sizes(metadata: Path) -> dict[str, int]:
    """File name -> bytes that it must at least have (torch distributed/checkpoint/filesystem.py,
    `_StorageInfo`).

    Raises:
        ValueError: the file is not the metadata of a torch_dist checkpoint.
    """
    try:
        with metadata.open("rb") as content:
            stored = vars(_Reader(content).load())["storage_data"]
        sizes: dict[str, int] = {}
        for info in stored.values():
            end = int(info.offset) + int(info.length)
            sizes[info.relative_path] = max(end, sizes.get(info.relative_path, 0))
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{metadata} cannot be read: {error!r}") from error
    return sizes
