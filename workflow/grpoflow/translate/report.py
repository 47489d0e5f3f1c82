"""What a translation consists of, and how it is shown."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from .batch import BatchComparison
from .scan import Unread

Outcome = Literal[
    "needs a decision", "re-derived", "renamed", "carried over", "default", "profile", "dropped"
]
OUTCOMES: dict[Outcome, str] = {
    "needs a decision": "Needs a decision",
    "re-derived": "Re-derived",
    "renamed": "Renamed",
    "carried over": "Carried over",
    "default": "Not in the script, written out because the defaults differ",
    "profile": "Belongs into the Slurm profile",
    "dropped": "Dropped",
}

WIDTH = 108


@dataclass(frozen=True)
class Note:
    """What became of one parameter.

    command: the command it belongs to, "" for the script as a whole. parameter: as the script writes it.
    line: None where the script does not have it. target: what it became, "" if it needs no line there.
    """

    command: str
    parameter: str
    value: str
    line: int | None
    outcome: Outcome
    target: str
    why: str


@dataclass(frozen=True)
class Translation:
    """A translated script.

    to: "config", "megatron" or "swift". text: the YAML configuration or the bash commands, "" if there was
    nothing to translate. problems: what the target would refuse as it stands.
    """

    to: str
    text: str
    notes: tuple[Note, ...]
    unread: tuple[Unread, ...]
    batches: tuple[BatchComparison, ...]
    problems: tuple[str, ...]

    def to_json(self) -> str:
        """The translation as one JSON object."""
        value = asdict(self)
        value["batches"] = [batch.as_json() for batch in self.batches]
        return json.dumps(value, indent=2, ensure_ascii=False)

    def to_text(self) -> str:
        """The translation, followed by the report as comments: valid YAML or bash as a whole."""
        report = "\n".join(f"# {one_line(line)}".rstrip() for line in self._report())
        return f"{self.text.rstrip()}\n\n{report}\n" if self.text else f"{report}\n"

    def _report(self) -> Iterator[str]:
        if self.problems:
            yield "Refused as it stands:"
            yield from (line for problem in self.problems for line in _wrapped(problem, "  "))
            yield ""
        for batch in self.batches:
            yield from batch.lines()
            yield ""
        for outcome, title in OUTCOMES.items():
            notes = [note for note in self.notes if note.outcome == outcome]
            several = len({note.command for note in self.notes if note.command}) > 1
            if notes:
                yield f"{title}:"
                yield from (line for note in notes for line in _note_lines(note, several))
                yield ""
        if self.unread:
            yield "Lines that are not part of the translation:"
            for item in self.unread:
                yield f"  {_lines(item.first, item.last)}: {item.text}"
                yield from _wrapped(item.why, "      ")


def one_line(text: str) -> str:
    """A text as a comment can hold it: a line end would end it, and YAML has no control characters."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _note_lines(note: Note, several: bool) -> Iterator[str]:
    """One note; where there are several commands, with the one that it belongs to."""
    command = f" ({note.command})" if several and note.command and note.line else ""
    where = f"line {note.line}{command}: " if note.line else ""
    given = f"{note.parameter} {note.value}".rstrip()
    if note.target.startswith(f"{given}:"):  # a key that was written without being in the script
        given = ""
    yield f"  {where}{' -> '.join(filter(None, (given, note.target)))}"
    if note.why:
        yield from _wrapped(note.why, "      ")


def _wrapped(text: str, indent: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    return [indent + line for line in lines]


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first}-{last}"
