"""Read one log of any size in constant memory, block by block.

A block without any of the `triggers` costs one substring search per trigger; in others each line is searched
for the triggers, and only lines that contain one meet the patterns. Lines are cut at WINDOW bytes around the
trigger (a model dump or a completion may be megabytes on one line), and a progress bar's carriage return ends
a line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from . import stamps
from .findings import Finding
from .order import BEGINNING, Sighting
from .patterns import Pattern, filled, patterns, triggers
from .rules import finding
from .sources import Source
from .tracebacks import BEGIN, CHAINED, Line, Traceback, split
from .tracebacks import EXCEPTION as EXCEPTION_LINE

BLOCK = 1 << 20
WINDOW = 2048
SHOWN = 400
HEAD = 4 * BLOCK
NEAR = 1 << 16
TAIL = 1 << 14
MAX_UNKNOWN = 50
MAX_KEYS = 4096
MAX_PENDING = 64
MAX_TRACEBACKS = 256

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
START = b"Start time of running main"
END = b"End time of running main"
SHUTDOWN = b"INFO:     Shutting down"
CPU_ONLY = (b"no accelerator is found", b"doesn't include CPU backend", b"detected platform cpu")
TUNING = (b"Triton autotuning for function", b"with key as (", b"finished after ")
OWN_TRIGGERS = (BEGIN.encode(), CHAINED.encode(), START, END, SHUTDOWN, *TUNING)

TUNED = re.compile(r"Triton autotuning for function (\w+)")
TUNING_KEY = re.compile(r"with key as (\(.*)")
TUNING_TIME = re.compile(r"finished after ([\d.]+)s")
ROLLOUT_BAR = re.compile(
    rb"(?<![^\r\n])(?:Processed prompts: *)?100%\|[^|]*\| *(\d+)/\1 \[(?:(\d+):)?(\d\d):(\d\d)<"
)
BAR_END = re.compile(r".*(?:it/s|s/it)[^\]]*\]\s*")
INFER_CALL = b'"POST /infer/'
ASKED_PORT = re.compile(rb"run sh: [^\n]*swift/cli/rollout\.py[^\n]*?(?:--port[ =](\d+)|\n)")
SERVED_PORT = re.compile(rb"Uvicorn running on \w+://[^\s:]+:(\d+)")

# Exceptions that say that somebody else has gone, or that a person ended the program.
WAITING = re.compile(
    r"(?:Connection\w*|Timeout\w*|ReadTimeout|BrokenPipe\w*|EOFError|Dist(?:Network|Backend|Store)Error|RemoteError)$"
    r"|(?:Error|Timeout)Expired$"
)
INTERRUPTED = re.compile(r"(?:KeyboardInterrupt|SystemExit|CancelledError|SignalException)$")


@dataclass
class Tuning:
    """How often Triton tuned one kernel: seconds per distinct key, the longest of all ranks."""

    seconds: dict[int, float] = field(default_factory=dict)
    line: int = 0

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def add(self, key: str, seconds: float) -> None:
        identity = hash(key)
        if identity in self.seconds or len(self.seconds) < MAX_KEYS:
            self.seconds[identity] = max(seconds, self.seconds.get(identity, 0.0))


@dataclass
class LogFacts:
    """What one log says. bars, bar_seconds: finished progress bars of generation, and their total time."""

    source: Source
    sightings: list[Sighting] = field(default_factory=list)
    cpu_only: bool = False
    tuning: dict[str, Tuning] = field(default_factory=dict)
    infer_calls: int = 0
    bars: int = 0
    bar_seconds: float = 0.0


def scan(source: Source, index: int) -> LogFacts:
    """Read a log. `index` orders files whose lines have the same time."""
    return _Scanner(source, index).run()


class _Scanner:
    def __init__(self, source: Source, index: int) -> None:
        self.source, self.index = source, index
        status = source.path.stat()
        self.changed, self.size = status.st_mtime, status.st_size
        self.facts = LogFacts(source)
        self.triggers = [*triggers(), *OWN_TRIGGERS]
        self.found: dict[str, Sighting] = {}
        self.counts: dict[str, int] = {}
        self.pending: list[tuple[Sighting, int | None]] = []  # with the offset of the stamp before
        self.stamp: tuple[int, float] | None = None
        self.traces: dict[str, Traceback] = {}
        self.unknown: dict[str, str] = {}  # process -> the unexplained exception that it ended with last
        self.chained: set[str] = set()
        self.tuning: deque[list[str]] = deque(maxlen=MAX_PENDING)
        self.quiet = False  # the program ended well: what its threads say on the way out means nothing
        self.asked_port = b""
        # of the block that is being read
        self.block, self.offset, self.line = b"", 0, 1

    def run(self) -> LogFacts:
        for block in _blocks(self.source):
            self.block = block
            self._settle(self.block[:NEAR], self.offset)
            self._read_block()
            tail = max(0, len(self.block) - TAIL)
            self._settle(self.block[tail:], self.offset + tail)
            if near := stamps.last(self.block[tail:], self.changed):
                self.stamp = (self.offset + tail + near[0], near[1])
            self.offset += len(self.block)
        for sighting, before in self.pending:
            _place(sighting, before, (max(self.size, self.offset), self.changed))
        for key, sighting in self.found.items():
            sighting.finding = replace(sighting.finding, count=self.counts[key])
        self.facts.sightings += self.found.values()
        for sighting in self.facts.sightings:
            sighting.finding = replace(sighting.finding, when=sighting.when)
        return self.facts

    # ------------------------------------------------------------------ blocks and lines

    def _read_block(self) -> None:
        block = self.block
        if self.offset < HEAD:
            self._read_head()
        if self.source.role == "rollout":
            self.facts.infer_calls += block.count(INFER_CALL)
            for bar in ROLLOUT_BAR.finditer(block):
                self.facts.bars += 1
                self.facts.bar_seconds += int(bar[2] or 0) * 3600 + int(bar[3]) * 60 + int(bar[4])
        hot = [trigger for trigger in self.triggers if trigger in block]
        if not hot and not self.traces:
            self.line += block.count(b"\n")
            return
        start, before = 0, b""
        for raw in block.splitlines(keepends=True):
            trigger = next((trigger for trigger in hot if trigger in raw), None)
            if trigger is not None or self.traces:
                self._read_line(raw, start, trigger, before)
            start += len(raw)
            self.line += raw.endswith(b"\n")
            before = raw

    def _read_head(self) -> None:
        self.facts.cpu_only = self.facts.cpu_only or any(text in self.block for text in CPU_ONLY)
        if asked := ASKED_PORT.search(self.block):
            self.asked_port = asked[1] or b"8000"
        served = SERVED_PORT.search(self.block)
        if served and self.asked_port and served[1] != self.asked_port:
            moved = finding(
                "D11-port-moved",
                self.source.path,
                self.line + self.block.count(b"\n", 0, served.start()),
                served[0].decode(),
                "rollout",
                asked=self.asked_port.decode(),
                served=served[1].decode(),
            )
            self._sight(moved, 0, served.start(), served.end())

    def _read_line(self, raw: bytes, start: int, trigger: bytes | None, before: bytes) -> None:
        if trigger in (START, END, SHUTDOWN):
            self._program_began_or_ended(trigger)
            return
        at = 0 if len(raw) <= WINDOW or trigger is None else max(0, raw.find(trigger) - WINDOW // 2)
        cut = raw[at : at + WINDOW]
        line = split(ANSI.sub("", cut.decode(errors="replace")).rstrip())
        if BEGIN in line.body:
            if len(self.traces) < MAX_TRACEBACKS:
                handled = line.level in ("DEBUG", "INFO", "WARNING") or b"Exception ignored in" in before
                self.traces[line.process] = Traceback(handled)
            return
        if CHAINED in line.body:
            self.chained.add(line.process)
            return
        if trigger in TUNING and self._read_tuning(line.body):
            return
        trace = self.traces.get(line.process)
        if trace is not None:
            if line.body[:1].isspace() or not line.body:
                trace.add(line.body)
                return
            if EXCEPTION_LINE.match(line.body):
                del self.traces[line.process]
                self._match(line, cut, start, len(raw), trace)
                return
            if trace.stranger():
                del self.traces[line.process]
        if trigger is not None:
            self._match(line, cut, start, len(raw), None)

    def _program_began_or_ended(self, trigger: bytes | None) -> None:
        self.quiet = trigger != START
        if trigger == END:  # it went on in spite of everything seen so far
            for key in [
                key for key, known in self.found.items() if known.finding.kind in ("cause", "consequence")
            ]:
                sighting = self.found.pop(key)
                sighting.finding = replace(sighting.finding, kind="warning", count=self.counts.pop(key))
                self.facts.sightings.append(sighting)

    def _read_tuning(self, body: str) -> bool:
        if kernel := TUNED.search(body):
            self.tuning.append([kernel[1], ""])
        if self.tuning and (key := TUNING_KEY.search(body)):
            next((open_ for open_ in self.tuning if not open_[1]), self.tuning[-1])[1] = key[1]
        if self.tuning and (seconds := TUNING_TIME.search(body)):
            name, key_text = self.tuning.popleft()
            tuned = self.facts.tuning.setdefault(name, Tuning(line=self.line))
            # old versions of Triton print no key: every line counts
            tuned.add(key_text or str(len(tuned.seconds)), float(seconds[1]))
            return True
        return bool(kernel) or "with key as (" in body

    # ------------------------------------------------------------------ findings

    def _match(self, line: Line, raw: bytes, start: int, length: int, trace: Traceback | None) -> None:
        chained = trace is not None and line.process in self.chained
        if trace is not None:
            self.chained.discard(line.process)
        for pattern in patterns():
            if not any(literal in raw for literal in pattern.literals):
                continue
            if pattern.traceback_only and (trace is None or trace.handled):
                continue
            if match := pattern.match(line.body, trace.text if trace else ""):
                self._known(pattern, match, line, start, length, trace)
                if chained and trace and not trace.handled and pattern.kind == "cause":
                    self._forget(self.unknown.pop(line.process, ""))
                return
        if trace is not None and not trace.handled and not chained:
            self._unknown(line, start, length, trace)

    def _known(
        self,
        pattern: Pattern,
        match: re.Match[str],
        line: Line,
        start: int,
        length: int,
        trace: Traceback | None,
    ) -> None:
        kind = pattern.kind
        if trace is not None and not trace.handled and kind == "warning":
            kind = "cause"  # what is usually a warning ended a program here
        if self.quiet and (kind == "consequence" or (kind == "cause" and pattern.level > 0)):
            return
        bar = BAR_END.match(line.body[: match.start()])  # a progress bar may stand before it on the same line
        at = bar.end() if bar else max(0, match.start() - SHOWN // 2) if len(line.body) > SHOWN else 0
        self._sight(
            Finding(
                pattern.id,
                kind,
                str(self.source.path),
                self.line,
                line.body[at : at + SHOWN].strip(),
                filled(pattern.why, match),
                filled(pattern.fix, match),
                pattern.evidence,
                self.source.role or pattern.role,
            ),
            pattern.level,
            start,
            start + length,
        )

    def _unknown(self, line: Line, start: int, length: int, trace: Traceback) -> None:
        match = EXCEPTION_LINE.match(line.body)
        if match is None or self.quiet:
            return
        name = match["name"].rpartition(".")[2]
        key = f"exception {name} {re.sub(r'[0-9]+', '', line.body[match.end() :][:80])}"
        if (
            key not in self.found
            and sum(known.startswith("exception ") for known in self.found) >= MAX_UNKNOWN
        ):
            return
        self.unknown[line.process] = key
        level = 2 if WAITING.search(name) else 1 if INTERRUPTED.search(name) else 0
        place = trace.place()
        unknown = finding(
            ("exception", "interrupted", "exception-waiting")[level],
            self.source.path,
            self.line,
            line.body[:SHOWN].strip(),
            self.source.role,
            place=f"; it comes from {place}" if place else "",
        )
        self._sight(unknown, level, start, start + length, key)

    def _forget(self, key: str) -> None:
        if key in self.found and self.counts[key] == 1:
            forgotten = self.found.pop(key)
            self.pending = [entry for entry in self.pending if entry[0] is not forgotten]

    # ------------------------------------------------------------------ time

    def _sight(self, seen: Finding, level: int, start: int, end: int, key: str = "") -> None:
        """Note the first sighting of a finding, with the bounds of its time, and count the others.

        `start` and `end` are the line's offsets in the block.
        """
        key = key or seen.id
        self.counts[key] = self.counts.get(key, 0) + 1
        if key in self.found:
            return
        position = self.offset + start
        sighting = Sighting(seen, level, (self.index, position), BEGINNING, self.changed, self.changed)
        self.found[key] = sighting
        if own := stamps.first(self.block[start : min(end, start + WINDOW)], self.changed):
            sighting.earliest = sighting.latest = sighting.when = own[1]
            return
        low = max(0, start - NEAR)
        near = stamps.last(self.block[low:start], self.changed)
        stamp = (self.offset + low + near[0], near[1]) if near else self.stamp
        if stamp:
            sighting.earliest = stamp[1]
        self.pending.append((sighting, stamp and stamp[0]))
        self._settle(self.block[end : end + NEAR], self.offset + end)

    def _settle(self, piece: bytes, offset: int) -> None:
        """Give the lines above `piece` that wait for a later stamp the first one in it."""
        waiting = [entry for entry in self.pending if entry[0].position[1] < offset]
        if waiting and (found := stamps.first(piece, self.changed)):
            for sighting, before in waiting:
                _place(sighting, before, (offset + found[0], found[1]))
            self.pending = [entry for entry in self.pending if entry[0].position[1] >= offset]


def _place(sighting: Sighting, before: int | None, after: tuple[int, float]) -> None:
    """Set the time of a line by the nearest stamps before it (its offset) and after it (offset, time)."""
    sighting.latest = max(sighting.earliest, after[1])
    position = sighting.position[1]
    nearer_before = before is not None and position - before <= after[0] - position
    sighting.when = sighting.earliest if nearer_before else sighting.latest


def _blocks(source: Source) -> Iterator[bytes]:
    """Yield a file in blocks of about BLOCK bytes that end at the end of a line, if lines are not longer."""
    with source.path.open("rb") as content:
        rest = b""
        while piece := content.read(BLOCK):
            piece = rest + piece
            cut = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1 or len(piece)
            rest = piece[cut:]
            yield piece[:cut]
        if rest:
            yield rest
