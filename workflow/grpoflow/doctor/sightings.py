"""The findings of one log, with what its stamps say about their time (the rule is in `order`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from . import stamps, steps
from .findings import Finding
from .order import BEGINNING, Sighting

NEAR = 1 << 16  # how far from a line a stamp is looked for within its block
EDGE = 1 << 14  # how much of the end of every block is searched for a stamp
LINE = 1 << 11
MAX_EARLIER = 200


class Sightings:
    """First sightings by key, and how often each was seen.

    What looked like the end of a run is set aside as `earlier` when the log shows later steps. went_on: this
    has happened since the caller last cleared it.
    """

    def __init__(self, index: int, changed: float) -> None:
        self.counts: dict[str, int] = {}
        self._index, self._changed = index, changed
        self._found: dict[str, Sighting] = {}
        self._closed: list[Sighting] = []
        self._waiting: list[tuple[Sighting, int | None]] = []  # for a later stamp; offset of the one before
        self._stamp: tuple[int, float] | None = None
        self._block, self._offset = b"", 0
        self.went_on = False
        self._earlier: dict[str, Sighting] = {}
        self._ends: dict[str, int | None] = {}  # key of what may have ended the run -> the step before it
        self._step: int | None = None
        self._steps_read = 0  # bytes of the block

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def begin(self, block: bytes, offset: int) -> None:
        """Take the next block of the log; `offset` is its place in the file."""
        self._block, self._offset, self._steps_read = block, offset, 0
        self._settle(block[:NEAR], offset)

    def end_block(self) -> None:
        self._read_steps(len(self._block))
        start = max(0, len(self._block) - EDGE)
        self._settle(self._block[start:], self._offset + start)
        if found := stamps.last(self._block[start:], self._changed):
            self._stamp = (self._offset + start + found[0], found[1])

    def note(
        self, key: str, make: Callable[[], Finding], level: int, start: int, end: int, lasting: bool = False
    ) -> None:
        """Count a finding in bytes `start` to `end` of the block; make it if it is the first of its key.

        lasting: it harms a run that goes on.
        """
        self._read_steps(start)
        self.counts[key] = self.counts.get(key, 0) + 1
        if key in self._found:
            return
        position = (self._index, self._offset + start)
        sighting = Sighting(make(), level, position, BEGINNING, self._changed, self._changed)
        self._found[key] = sighting
        if sighting.finding.kind in ("cause", "consequence") and not lasting:
            self._ends[key] = self._step
        if own := stamps.first(self._block[start : min(end, start + LINE)], self._changed):
            sighting.earliest = sighting.latest = sighting.when = own[1]
            return
        low = max(0, start - NEAR)
        near = stamps.last(self._block[low:start], self._changed)
        before = (self._offset + low + near[0], near[1]) if near else self._stamp
        if before:
            sighting.earliest = before[1]
        self._waiting.append((sighting, before and before[0]))
        self._settle(self._block[end : end + NEAR], self._offset + end)

    def forget(self, key: str) -> None:
        """Drop a finding that a later line explains better, unless it was seen more than once."""
        if key in self._found and self.counts[key] == 1:
            forgotten = self._found.pop(key)
            self._ends.pop(key, None)
            self._waiting = [entry for entry in self._waiting if entry[0] is not forgotten]

    def excuse(self) -> None:
        """Turn what looked like the end of a program into warnings: it went on and ended well."""
        for key, sighting in list(self._found.items()):
            if sighting.finding.kind in ("cause", "consequence"):
                sighting.finding = replace(sighting.finding, kind="warning", count=self.counts.pop(key))
                self._closed.append(self._found.pop(key))
        self._ends.clear()

    def set_aside(self) -> None:
        """The program was started again: how it ended before is not how it ends."""
        for key in list(self._ends):
            self._set_aside(key)
        self._step = None

    def _read_steps(self, end: int) -> None:
        piece = self._block[self._steps_read : end]
        self._steps_read = max(self._steps_read, end)
        last = steps.last(piece)
        if last is None:
            return
        begun = steps.first(piece)
        for key, known in list(self._ends.items()):
            before = begun if known is None else known
            if before is not None and last >= before + steps.WENT_ON:
                self._set_aside(key)
            else:
                self._ends[key] = before
        self._step = last

    def _set_aside(self, key: str) -> None:
        del self._ends[key]
        sighting = self._found.pop(key)
        count = self.counts.pop(key)
        self.went_on = True
        if key in self._earlier:
            known = self._earlier[key]
            known.finding = replace(known.finding, count=known.finding.count + count)
        elif len(self._earlier) < MAX_EARLIER:
            sighting.finding = replace(sighting.finding, kind="earlier", count=count)
            self._earlier[key] = sighting

    def end(self, size: int) -> list[Sighting]:
        """Return all sightings of a file of `size` bytes."""
        for sighting, before in self._waiting:
            _place(sighting, before, (size, self._changed))
        for key, sighting in self._found.items():
            sighting.finding = replace(sighting.finding, count=self.counts[key])
        everything = [*self._closed, *self._found.values(), *self._earlier.values()]
        for sighting in everything:
            sighting.finding = replace(sighting.finding, when=sighting.when)
        return everything

    def _settle(self, piece: bytes, offset: int) -> None:
        """Give the lines above `piece` that wait for a later stamp the first one in it."""
        waiting = [entry for entry in self._waiting if entry[0].position[1] < offset]
        if waiting and (found := stamps.first(piece, self._changed)):
            for sighting, before in waiting:
                _place(sighting, before, (offset + found[0], found[1]))
            self._waiting = [entry for entry in self._waiting if entry[0].position[1] >= offset]


def _place(sighting: Sighting, before: int | None, after: tuple[int, float]) -> None:
    """Set the time of a line by the nearest stamps before it (its offset) and after it (offset, time)."""
    sighting.latest = max(sighting.earliest, after[1])
    position = sighting.position[1]
    nearer_before = before is not None and position - before <= after[0] - position
    sighting.when = sighting.earliest if nearer_before else sighting.latest
