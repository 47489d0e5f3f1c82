"""Checkpoints as `megatron rlhf` writes them: valid files, in the same order, of almost no size."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

from arguments import seconds
from group import Group

TRACKER = "latest_checkpointed_iteration.txt"


class Torn(Exception):
    """A checkpoint that was to be loaded is not complete."""


def save(output: Path, iteration: int, consumed: int, limit: int, group: Group) -> Path:
    """Write checkpoint-`iteration`; the link is swapped last, and then the oldest goes."""
    directory = output / f"checkpoint-{iteration}"
    shards = directory / f"iter_{iteration:07d}"
    shards.mkdir(parents=True, exist_ok=True)
    if group.is_master:
        shutil.copy(output / "args.json", directory / "args.json")
    size = int(os.environ.get("STANDIN_SHARD", "4096"))
    (shards / f"__{group.rank}_0.distcp").write_bytes(os.urandom(size))
    time.sleep(seconds("SAVE", 0.0))
    (shards / f"__{group.rank}_1.distcp").write_bytes(os.urandom(size))
    group.maximum(0)
    if group.is_master:
        names = [f"__{rank}_{part}.distcp" for rank in range(group.size) for part in (0, 1)]
        (shards / ".metadata").write_bytes(_metadata(names, size))
        with zipfile.ZipFile(shards / "common.pt", "w") as common:
            common.writestr("common/data.pkl", json.dumps({"iteration": iteration, "consumed": consumed}))
        (shards / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
        # before the weights: not a sign of completeness, in ms-swift neither
        (directory / TRACKER).write_text(str(iteration))
        time.sleep(seconds("SAVE", 0.0))
        _hugging_face(directory, size)
        _link(output / "last-checkpoint", directory.name)
        _rotate(output, limit)
    group.maximum(0)
    return directory


def load(directory: Path) -> tuple[int, int]:
    """Return iteration and consumed samples. Raises: Torn."""
    iteration = int((directory / TRACKER).read_text())
    shards = directory / f"iter_{iteration:07d}"
    _torch_modules()
    metadata = pickle.loads((shards / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        path = shards / info.relative_path
        if path.stat().st_size < info.offset + info.length:
            raise Torn(f"{path}: unexpected end of file")
    with zipfile.ZipFile(shards / "common.pt") as common:
        content = json.loads(common.read("common/data.pkl"))
    return int(content["iteration"]), int(content["consumed"])


def _hugging_face(directory: Path, size: int) -> None:
    header = {"model.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + os.urandom(size)
    (directory / "model.safetensors").write_bytes(content)
    for name in ("config.json", "tokenizer_config.json"):
        (directory / name).write_text("{}")


def _link(link: Path, target: str) -> None:
    temporary = link.with_name(f"{link.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def _rotate(output: Path, limit: int) -> None:
    found = sorted(output.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)
    for path in found[: max(0, len(found) - limit)]:
        shutil.rmtree(path)


def _torch_modules() -> tuple[Any, Any, Any]:
    """Classes under the names of torch.distributed.checkpoint, by which pickle finds them."""
    metadata = sys.modules.setdefault(
        "torch.distributed.checkpoint.metadata", ModuleType("torch.distributed.checkpoint.metadata")
    )
    filesystem = sys.modules.setdefault(
        "torch.distributed.checkpoint.filesystem", ModuleType("torch.distributed.checkpoint.filesystem")
    )
    found = []
    for module, name in ((metadata, "Metadata"), (metadata, "MetadataIndex"), (filesystem, "_StorageInfo")):
        if not hasattr(module, name):
            setattr(module, name, type(name, (_Bare,), {"__module__": module.__name__}))
        found.append(getattr(module, name))
    return found[0], found[1], found[2]


class _Bare:
    """A class with nothing but its attributes."""

    def __init__(self, **values: Any):
        vars(self).update(values)

    def __hash__(self) -> int:
        return id(self)


def _metadata(names: list[str], size: int) -> bytes:
    metadata, index, info = _torch_modules()
    # two tensors in each file, so that the end of the file is not the end of its first one
    data = {
        index(fqn=f"{name}/{half}", offset=None, index=None): info(
            relative_path=name, offset=half * (size // 2), length=size // 2, transform_descriptors=None
        )
        for name in names
        for half in (0, 1)
    }
    return pickle.dumps(metadata(state_dict_metadata={}, storage_data=data))
