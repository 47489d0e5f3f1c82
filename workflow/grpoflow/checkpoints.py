"""Checkpoints on disk: Hugging Face directories, Megatron-core directories, and those of a GRPO run.

Nothing here loads weights: names, shapes and completeness are read from headers.
"""

from __future__ import annotations

import json
import re
import uuid
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError, safe_open

from grpoflow.files import point, read_json
from grpoflow.shards import shard_sizes

HF_FILES = ("config.json", "tokenizer_config.json")
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
PIECE = 1 << 24
TRACKER = "latest_checkpointed_iteration.txt"


class CheckpointError(Exception):
    """A checkpoint is not what it must be. The message names the file and the fault."""


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    dtype: str


def tensors(directory: Path) -> dict[str, Tensor]:
    """Read name, shape and type of every tensor of a Hugging Face directory.

    Raises:
        CheckpointError: there is none, a shard is torn, or the index names a shard that is missing.
    """
    shards = sorted(directory.glob("*.safetensors"))
    if not shards:
        raise CheckpointError(f"no safetensors in {directory}")
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index} cannot be read: {error!r}") from error
        missing = sorted(named - {shard.name for shard in shards})
        if missing:
            raise CheckpointError(f"{index} names shards that are missing: {', '.join(missing)}")
    found: dict[str, Tensor] = {}
    for shard in shards:
        try:
            with safe_open(shard, framework="numpy") as content:
                for name in content.keys():  # noqa: SIM118 - not a dict
                    piece = content.get_slice(name)
                    found[name] = Tensor(tuple(piece.get_shape()), str(piece.get_dtype()))
        except SafetensorError as error:
            raise CheckpointError(f"{shard} cannot be read: {error}") from error
    return found


def same_values(directory: Path, first: str, second: str) -> bool:
    """Whether two tensors of a Hugging Face directory are equal byte by byte, read in pieces.

    Raises:
        CheckpointError: one of them is not there.
    """
    with ExitStack() as stack:
        (a, size), (b, other) = (_data(stack, directory, name) for name in (first, second))
        if size != other:
            return False
        while size > 0:
            piece = min(size, PIECE)
            if a.read(piece) != b.read(piece):
                return False
            size -= piece
    return True


def _data(stack: ExitStack, directory: Path, name: str) -> tuple[BinaryIO, int]:
    """A file that stands at the first byte of a tensor, and how many bytes it has (safetensors: the length of
    the header in 8 bytes, the header in JSON, the data)."""
    for shard in sorted(directory.glob("*.safetensors")):
        file = stack.enter_context(shard.open("rb"))
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        if name in header:
            start, end = header[name]["data_offsets"]
            file.seek(8 + length + start)
            return file, end - start
    raise CheckpointError(f"{directory} has no {name}")


def check_hf_directory(directory: Path) -> dict[str, Tensor]:
    """Check that a Hugging Face directory is complete in itself; return its tensors.

    Raises:
        CheckpointError: a file is missing, or the shards are not whole.
    """
    for name in HF_FILES:
        if not (directory / name).is_file():
            raise CheckpointError(f"{directory} has no {name}")
    return tensors(directory)


def check_mcore_directory(directory: Path) -> None:
    """Check that a torch_dist checkpoint is complete: every shard is there in its full length.

    Raises:
        CheckpointError: a file is missing, empty or cut off.
    """
    tracker = directory / TRACKER
    if not tracker.is_file():
        raise CheckpointError(f"{tracker} is missing")
    iteration = directory / f"iter_{int(tracker.read_text()):07d}"
    for path in (directory / "args.json", iteration / ".metadata", iteration / "common.pt"):
        if not path.is_file() or not path.stat().st_size:
            raise CheckpointError(f"{path} is missing or empty")
    try:
        read_json(directory / "args.json")
        sizes = shard_sizes(iteration / ".metadata")
    except ValueError as error:
        raise CheckpointError(f"{directory} is not complete: {error}") from error
    if not sizes:
        raise CheckpointError(f"{iteration / '.metadata'} names no shard")
    for name, size in sizes.items():
        found = (iteration / name).stat().st_size if (iteration / name).is_file() else 0
        if found < size:
            raise CheckpointError(f"{iteration / name} has {found} of {size} bytes")
    _check_torch_files(iteration)


def _check_torch_files(directory: Path) -> None:
    """Files of torch.save are zip archives, whose table of contents is at the end: one cut off has none."""
    for path in (*directory.glob("*.pt"), *directory.glob("*.pth")):
        if not zipfile.is_zipfile(path):
            raise CheckpointError(f"{path} is cut off")


@dataclass(frozen=True)
class RunCheckpoint:
    """A complete checkpoint of a GRPO run."""

    path: Path
    step: int


def newest_checkpoint(output: Path, up_to: int | None = None) -> RunCheckpoint | None:
    """Find the newest complete checkpoint of a run (of no later step than `up_to`), or None.

    `last-checkpoint` is swapped only after a checkpoint is written completely (ms-swift >= 4.5.3,
    swift/utils/io_utils.py:110-139), so nothing newer than its target counts.
    `latest_checkpointed_iteration.txt` is written earlier and proves nothing.
    """
    link = output / "last-checkpoint"
    if not link.is_dir():
        return None
    newest = _step(link.resolve())
    if up_to is not None:
        newest = min(newest, up_to)
    candidates = sorted(
        (step, path) for path in output.glob("checkpoint-*") if 0 < (step := _step(path)) <= newest
    )
    for step, path in reversed(candidates):
        try:
            check_run_checkpoint(path)
        except CheckpointError:
            continue  # torn: the one before it is used
        return RunCheckpoint(path, step)
    return None


def check_run_checkpoint(path: Path) -> None:
    """Check one checkpoint of a run: its weights, the optimizer state where it was saved, and that all of it
    is of the step that the directory's name says.

    Raises:
        CheckpointError: it is not complete.
    """
    try:
        if (path / TRACKER).is_file():
            check_mcore_directory(path)
            step = int((path / TRACKER).read_text())
        else:
            _check_torch_files(path)
            step = read_json(path / "trainer_state.json")["global_step"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{path} is not complete: {error!r}") from error
    if step != _step(path):
        raise CheckpointError(f"{path} holds step {step}")
    # Megatron LoRA: the directory itself has the adapter's state, the merged model is beside it
    merged = path.with_name(f"{path.name}-merged")
    tensors(merged if merged.is_dir() else path)


def set_aside_incomplete(output: Path, newest: RunCheckpoint | None) -> list[Path]:
    """Rename checkpoints newer than `newest`, so that no attempt trains from half a checkpoint, and turn the
    link back to `newest`: one that leads nowhere would hide it from the attempt after the next."""
    moved = []
    for path in output.glob("checkpoint-*"):
        if _step(path) > (newest.step if newest else 0):
            aside = path.with_name(f"incomplete-{path.name}-{uuid.uuid4().hex[:8]}")
            path.rename(aside)
            moved.append(aside)
            merged = path.with_name(f"{path.name}-merged")
            if merged.is_dir():  # that of another attempt would count as this step's model
                merged.rename(aside.with_name(f"{aside.name}-merged"))
    if newest is not None:
        point(output / "last-checkpoint", newest.path)
    return moved


def _step(path: Path) -> int:
    match = CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match else -1
