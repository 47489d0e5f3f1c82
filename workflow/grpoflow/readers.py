"""Data sets of every format as rows, one at a time: a file of any size takes constant memory.

JSON Lines, JSON and CSV need the standard library only. Parquet and directories of the `datasets` package are
read by the packages of the training environment.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from grpoflow.rows import lines, parse

Record = tuple[int, Any, str]
"""Number of the row (from 1; of a JSON Lines file the line), its value, or the reason why there is none."""

CHUNK = 1 << 20
LARGEST_RECORD = 256 << 20
BATCH = 256
SEPARATOR = re.compile(r"[\s,]*")
SPLIT = re.compile(r"(train|test|valid|val|dev)", re.IGNORECASE)
"""File names of data sets on the Hugging Face hub, e.g. train-00000-of-00002.parquet."""
ARROW_FILES = ("dataset_info.json", "state.json")


class DataError(Exception):
    """A data set cannot be read at all. The message says which, why and what is legal."""


def records(source: Path) -> Iterator[Record]:
    """Read a file or a directory.

    Raises:
        DataError: the format is unknown, or the file is broken in a way that hides the rows after it.
    """
    if source.is_dir():
        yield from _directory(source)
        return
    if not source.is_file():
        raise DataError(f"{source}: no such file")
    read = READERS.get(source.suffix.lower())
    if read is None:
        raise DataError(f"{source}: unknown format; legal: {', '.join(READERS)}, a directory of `datasets`")
    yield from read(source)


def _json_lines(source: Path) -> Iterator[Record]:
    for number, line in lines(source):
        yield number, *parse(line)


def _json(source: Path) -> Iterator[Record]:
    with source.open(encoding="utf-8-sig", errors="surrogateescape") as content:
        start = content.read(CHUNK).lstrip()
        if start.startswith("["):
            yield from _array(source, content, start[1:])
            return
    yield from _json_lines(source)


def _array(source: Path, content: TextIO, buffer: str) -> Iterator[Record]:
    """Read the elements of a JSON array without holding more than one of them."""
    decoder = json.JSONDecoder()
    position, number = 0, 0
    while True:
        match = SEPARATOR.match(buffer, position)
        position = match.end() if match else position
        if buffer.startswith("]", position):
            return
        try:
            _, end = decoder.raw_decode(buffer, position)
        except (ValueError, RecursionError):
            more = content.read(CHUNK)
            buffer, position = buffer[position:] + more, 0
            if not more or len(buffer) > LARGEST_RECORD:
                raise DataError(f"{source}: not valid JSON after row {number}") from None
            continue
        number += 1
        yield number, *parse(buffer[position:end])
        buffer, position = (buffer[end:], 0) if end > CHUNK else (buffer, end)


def _csv(source: Path) -> Iterator[Record]:
    csv.field_size_limit(LARGEST_RECORD)
    with source.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as content:
        reader = csv.DictReader(content, strict=True)
        number = 0
        while True:
            number += 1
            try:
                row = next(reader, None)
            except csv.Error as error:
                raise DataError(f"{source}: row {number}: {error}") from error
            if row is None:
                return
            yield number, *_csv_row(row)


def _csv_row(row: dict[Any, Any]) -> tuple[Any, str]:
    if None in row or None in row.values():
        return None, "more or fewer fields than the header"
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None, "not valid UTF-8"
    # a conversation or a list of files in one field is JSON
    return {name: _structured(text) for name, text in row.items()}, ""


def _structured(text: str) -> Any:
    if text[:1] not in ("[", "{"):
        return text
    value, reason = parse(text)
    return text if reason else value


def _parquet(source: Path) -> Iterator[Record]:
    from pyarrow import ArrowException  # noqa: PLC0415 - only in the training environment
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415

    number = 0
    try:
        with ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row, ""
    except (ArrowException, OSError) as error:
        raise DataError(f"{source}: not readable as Parquet after row {number}: {error}") from error


def _directory(source: Path) -> Iterator[Record]:
    if (source / "dataset_dict.json").is_file():
        splits = json.loads((source / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        legal = ", ".join(str(source / split) for split in splits)
        raise DataError(f"{source} has several splits; legal: {legal}")
    if all((source / name).is_file() for name in ARROW_FILES):
        yield from _saved(source)
        return
    files = sorted(path for path in source.iterdir() if path.suffix.lower() in READERS)
    formats = sorted({path.suffix.lower() for path in files})
    if len(formats) != 1:
        what = f"files of several formats ({', '.join(formats)})" if files else "no data"
        raise DataError(
            f"{source} holds {what}; legal: one format of {', '.join(READERS)}, or a saved data set"
        )
    splits = {path.name: SPLIT.match(path.name) for path in files}
    if len({match[1].lower() for match in splits.values() if match}) > 1:
        raise DataError(
            f"{source} has several splits ({', '.join(splits)}); legal: one file, or one split each"
        )
    number = 0
    for path in files:
        for _, row, reason in records(path):
            number += 1
            yield number, row, reason


def _saved(source: Path) -> Iterator[Record]:
    """A directory that `Dataset.save_to_disk` wrote; memory-mapped."""
    from datasets import load_from_disk  # noqa: PLC0415 - only in the training environment

    number = 0
    # as Arrow, so that images come as the bytes that were stored, not decoded
    for table in load_from_disk(str(source)).with_format("arrow").iter(batch_size=BATCH):
        for row in table.to_pylist():
            number += 1
            yield number, row, ""


READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
