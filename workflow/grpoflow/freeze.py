"""Freezing a data set: every row is kept in one form or rejected with a reason, in constant memory.

The lengths of prompts come from a function, since the template and the tokenizer live in the training
environment (`grpoflow.training_env.cache_prompts`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from grpoflow.readers import Record, records
from grpoflow.rows import MEDIA_COLUMNS, Row, normalise

BATCH = 128
PEEKED = 1000
"""Rows from which is learned what a column holds."""

BINS = 20
SUFFIXES = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp"}


@dataclass(frozen=True)
class Measured:
    """A prompt as the model sees it."""

    tokens: int
    image_tokens: int = 0


@dataclass(frozen=True)
class NotEncodable:
    """A prompt that the template cannot turn into tokens."""

    reason: str
    detail: str
    """What was said about this row; reasons are counted, details are not."""


Measure = Callable[[Row], Measured | NotEncodable]
"""Counts the tokens of a row, or says why it cannot be encoded."""


@dataclass(frozen=True)
class Media:
    """Where embedded images are written to, and where they will lie."""

    directory: Path
    final: Path

    def store(self, content: bytes) -> Path:
        """Write an image under the hash of its content. Two processes may write the same one."""
        suffix = next((end for start, end in SUFFIXES.items() if content.startswith(start)), ".bin")
        name = hashlib.sha256(content).hexdigest()[:32] + suffix
        path = self.directory / name[:2] / name
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{os.getpid()}-{name}")
            temporary.write_bytes(content)
            temporary.replace(path)
        return path

    def finally_at(self, path: str) -> str:
        return (
            path.replace(str(self.directory), str(self.final), 1)
            if path.startswith(str(self.directory))
            else path
        )


@dataclass(frozen=True)
class Rules:
    """What makes a row of one split valid."""

    directory: Path
    """Where relative paths start."""
    media: Media
    kinds: Mapping[str, str]
    """What each column holds in the rows that were looked at first."""
    required: Sequence[str] = ()
    """Columns that the reward functions cannot do without."""
    max_length: int | None = None
    """Longest prompt in tokens; None keeps longer ones."""
    answered: bool = False


@dataclass(frozen=True)
class Prepared:
    """A row that was checked and measured."""

    number: int
    reason: str = ""
    detail: str = ""
    text: str = ""
    prompt: bytes = b""
    """Hash of what the model is asked."""
    measured: Measured = Measured(0)
    columns: frozenset[str] = frozenset()
    """Columns that hold something."""
    images: int = 0


@dataclass
class Split:
    """What became of one file."""

    kept: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    """How many kept prompts have this many tokens; all 0 where nothing is measured."""
    image_tokens: Counter[int] = field(default_factory=Counter)
    """How many kept prompts with images have this many tokens of images."""
    longest_rejected: int = 0
    most_images: int = 0
    columns: set[str] = field(default_factory=set)

    def facts(self) -> dict[str, Any]:
        """For a manifest."""
        found: dict[str, Any] = {
            "rows": self.kept + self.rejected.total(),
            "kept": self.kept,
            "rejected": dict(self.rejected),
            "columns": sorted(self.columns),
            "most_images": self.most_images,
        }
        if any(self.tokens):
            found["prompt_tokens"] = {**summary(self.tokens), "longest_rejected": self.longest_rejected}
        if self.image_tokens:
            found["image_tokens"] = summary(self.image_tokens)
        return found


def summary(counts: Mapping[int, int]) -> dict[str, Any]:
    """Mean, percentiles and histogram of numbers; `histogram` has [upper bound of the bin, how many]."""
    total = sum(counts.values())
    if not total:
        return {"count": 0}
    values = sorted(counts)
    cumulated = list(itertools.accumulate(counts[value] for value in values))

    def quantile(share: float) -> int:
        return next(v for v, below in zip(values, cumulated, strict=True) if below >= share * total)

    width = -(-(values[-1] + 1) // BINS)
    bins = Counter[int]()
    for value, count in counts.items():
        bins[value // width] += count
    return {
        "count": total,
        "mean": round(sum(value * count for value, count in counts.items()) / total, 1),
        "min": values[0],
        **{f"p{percent}": quantile(percent / 100) for percent in (50, 90, 99)},
        "max": values[-1],
        "histogram": [[(index + 1) * width - 1, bins[index]] for index in range(max(bins) + 1)],
    }


class Seen:
    """Which prompts were kept, and in which split. On disk: memory does not grow with the rows."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # a private temporary file
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE seen (prompt BLOB PRIMARY KEY, split TEXT) WITHOUT ROWID")
        self._database.execute("BEGIN")  # one transaction that is never committed

    def split_of(self, prompt: bytes) -> str:
        """The split that has this prompt, or "" if none has."""
        found = self._database.execute("SELECT split FROM seen WHERE prompt = ?", (prompt,)).fetchone()
        return str(found[0]) if found else ""

    def add(self, prompt: bytes, split: str) -> str:
        """Note a prompt; return the split that has it already, or ""."""
        done = self._database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (prompt, split))
        return "" if done.rowcount else self.split_of(prompt)


def kind(value: Any) -> str:
    """What a column of a JSON file holds, as far as pyarrow tells types apart; "" for nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, list | tuple):
        return "a list"
    return "an object" if isinstance(value, dict) else "text"


def usual_kinds(peeked: Iterable[Record]) -> dict[str, str]:
    """What most rows hold in each column."""
    counts: dict[str, Counter[str]] = {}
    for _, row, _ in peeked:
        for name, value in row.items() if isinstance(row, dict) else ():
            if found := kind(value):
                counts.setdefault(name, Counter())[found] += 1
    return {name: counter.most_common(1)[0][0] for name, counter in counts.items()}


def prepare(batch: Sequence[Record], rules: Rules, measure: Measure | None) -> list[Prepared]:
    """Check, normalise and measure rows; needs nothing but its arguments, so that processes can share it."""
    return [_prepare(number, row, reason, rules, measure) for number, row, reason in batch]


def _prepare(number: int, value: Any, reason: str, rules: Rules, measure: Measure | None) -> Prepared:
    row = None
    if not reason:
        row, reason = normalise(value, rules.directory, answered=rules.answered, store=rules.media.store)
    if row is not None:
        reason = _check_columns(row, rules)
    if row is None or reason:
        return Prepared(number, reason)
    text, reason = _text(row, rules.media)
    measured = Measured(0) if measure is None or reason else measure(row)
    detail = ""
    if isinstance(measured, NotEncodable):
        reason, detail, measured = measured.reason, measured.detail, Measured(0)
    if rules.max_length is not None and measured.tokens > rules.max_length:
        reason = "longer than data.max_length"
    columns = frozenset(name for name, value in row.items() if value not in (None, [], {}))
    images = len(row.get("images", ()))
    asked = prompt_hash(row, rules.answered)
    return Prepared(number, reason, detail, text, asked, measured, columns, images)


def _text(row: Row, media: Media) -> tuple[str, str]:
    """The row as one line of JSON, or the reason why it cannot be one."""
    final = {**row}
    for column in MEDIA_COLUMNS:
        if column in row:
            final[column] = [media.finally_at(path) for path in row[column]]
    try:
        text = json.dumps(final, ensure_ascii=False, allow_nan=False, default=_plain)
        text.encode()
    except UnicodeEncodeError:
        return "", "text with half of a surrogate pair"
    except (TypeError, ValueError) as error:
        return "", f"not JSON: {error}"
    return text, ""


def _check_columns(row: Row, rules: Rules) -> str:
    for name in rules.required:
        if row.get(name) is None or row[name] == "":
            return f"column {name} is missing"
    for name, value in row.items():
        usual = rules.kinds.get(name)
        found = kind(value)
        if usual and found and found != usual and name not in ("messages", *MEDIA_COLUMNS):
            # a JSON file has one type per column: pyarrow would refuse it, or `datasets` turn '4' into 4
            return f"column {name} holds {found}, in other rows {usual}"
    return ""


def _plain(value: Any) -> Any:
    """Dates, times and decimals of Parquet as text; nothing else is turned into JSON."""
    if hasattr(value, "isoformat") or type(value).__name__ == "Decimal":
        return str(value)
    raise TypeError(f"a column holds {type(value).__name__}")


def prompt_hash(row: Row, answered: bool = False) -> bytes:
    """Identify what the model is asked: the messages up to the answer, and the media."""
    messages = row["messages"][:-1] if answered else row["messages"]
    # the template of Qwen3.5 trims every message (swift/template/templates/qwen.py, Qwen3_5Template)
    asked = [
        (m["role"], m["content"].strip() if isinstance(m["content"], str) else m["content"]) for m in messages
    ]
    media = [row.get(column) for column in MEDIA_COLUMNS]
    text = json.dumps([asked, media], ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


Prepare = Callable[
    [Callable[[Sequence[Record]], list[Prepared]], Iterable[Sequence[Record]]], Iterator[list[Prepared]]
]
"""`map`, or one that spreads batches over processes and keeps their order."""


def freeze(
    name: str,
    source: Path,
    target: Path,
    seen: Seen,
    refused: TextIO,
    *,
    media: Media,
    measure: Measure | None,
    required: Sequence[str] = (),
    max_length: int | None = None,
    answered: bool = False,
    spread: Prepare = map,
) -> Split:
    """Write the valid rows of `source` to `target` (JSON Lines), the others with their reason to `refused`.

    A prompt that is in `seen` is rejected, and prompts that are kept are added to it: freeze the validation
    set first, so that a prompt that is in both is taken out of training. `answered` rows (SFT) may repeat
    a prompt, but not one of another split.

    Raises:
        DataError: the source cannot be read at all.
    """
    rows = records(source)
    peeked = list(itertools.islice(rows, PEEKED))
    directory = source if source.is_dir() else source.parent
    rules = Rules(directory, media, usual_kinds(peeked), required, max_length, answered)
    split = Split()
    witnesses = dict[str, int]()
    batches = _batches(itertools.chain(peeked, rows))
    work = partial(prepare, rules=rules, measure=measure)
    with target.open("w", encoding="utf-8") as output:
        for prepared in itertools.chain.from_iterable(spread(work, batches)):
            reason = prepared.reason or _known(prepared, name, seen, answered)
            if reason:
                split.rejected[reason] += 1
                if prepared.reason:
                    split.longest_rejected = max(split.longest_rejected, prepared.measured.tokens)
                entry = {"split": name, "file": str(source), "row": prepared.number, "reason": reason}
                if prepared.detail:
                    entry["detail"] = prepared.detail
                if prepared.measured.tokens:
                    entry["tokens"] = prepared.measured.tokens
                refused.write(json.dumps(entry, ensure_ascii=False) + "\n")
                continue
            for column in prepared.columns - witnesses.keys():
                witnesses[column] = split.kept
            _count(split, prepared)
            output.write(prepared.text + "\n")
    _lead_with(target, sorted(set(witnesses.values())))
    return split


def _batches(rows: Iterable[Record]) -> Iterator[tuple[Record, ...]]:
    iterator = iter(rows)
    while batch := tuple(itertools.islice(iterator, BATCH)):
        yield batch


def _known(prepared: Prepared, name: str, seen: Seen, answered: bool) -> str:
    """Why a prompt must not be used again, or ""."""
    if answered:
        return "prompt is also in val" if seen.split_of(prepared.prompt) == "val" else ""
    split = seen.add(prepared.prompt, name)
    return "" if not split else "duplicate prompt" if split == name else f"prompt is also in {split}"


def _count(split: Split, prepared: Prepared) -> None:
    split.kept += 1
    split.tokens[prepared.measured.tokens] += 1
    if prepared.images:
        split.image_tokens[prepared.measured.image_tokens] += 1
    split.most_images = max(split.most_images, prepared.images)
    split.columns |= prepared.columns


def _lead_with(target: Path, first: Sequence[int]) -> None:
    """Move the rows with these numbers (from 0) to the start of a file.

    `datasets` takes the types of all columns from the first 10 MiB of a JSON file: a column that is empty or
    absent up to there, such as `images` of a mixed set, ends in DatasetGenerationError. So the first rows are
    ones that together have every column.
    """
    if list(first) == list(range(len(first))):
        return
    wanted = set(first)
    temporary = target.with_name(f".{target.name}.tmp")
    with target.open("rb") as content, temporary.open("wb") as output:
        output.writelines(line for index, line in enumerate(content) if index in wanted)
        content.seek(0)
        output.writelines(line for index, line in enumerate(content) if index not in wanted)
    temporary.replace(target)
