"""Read one log of any size in constant memory, block by block.

A block without any trigger costs one substring search per trigger. Where there are some, the block is
searched for the literals of their patterns, and only if one is there its lines are looked at one by one.
Lines are cut at WINDOW bytes around the literal (a model dump or a completion may be megabytes on one line),
and a progress bar's carriage return ends a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from . import autotune, stamps
from .autotune import Autotuning, Kernel
from .findings import Finding
from .order import SLACK_SECONDS, Sighting
from .patterns import Pattern, filled, patterns, triggers
from .rules import finding
from .sightings import Sightings
from .sources import UNREADABLE, Source, opened
from .speech import reports
from .tracebacks import BEGIN, CHAINED, EXCEPTION, Line, Traceback, split

BLOCK = 1 << 20
HEAD = 4 * BLOCK
WINDOW = 2048
SHOWN = 400
MAX_COUNT = 1000
MAX_UNKNOWN = 50
MAX_TRACEBACKS = 256
MAX_ENDED = 5000
MAX_OPEN_LINES = 20_000
MESSAGE_LINES = 5  # of one exception: the line that explains it need not be the first

START = b"Start time of running main"
END = b"End time of running main"
SHUTDOWN = b"INFO:     Shutting down"
RUN = b"run sh: `"  # the command that `swift` starts
OWN_TRIGGERS = (RUN, BEGIN.encode(), CHAINED.encode(), START, END, SHUTDOWN, autotune.FUNCTION)
# the text of a completion may contain any error message: only what no sane model writes counts
COMPLETIONS_TRIGGERS = (b"!!!!!!!!",)

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
BAR_END = re.compile(r".*(?:it/s|s/it)[^\]]*\]\s*")
CPU_ONLY = (
    b"no accelerator is found",
    b"'device_map': 'cpu'",
    b"doesn't include CPU backend",
    b"detected platform cpu",
)
ROLLOUT_BAR = re.compile(
    rb"(?<![^\r\n])(?: *\d+: )?(?:Processed prompts: *)?100%\|[^|]*\| *(\d+)/\1 \[(?:(\d+):)?(\d\d):(\d\d)<"
)
INFER_CALL = b'"POST /infer/'
ASKED_PORT = re.compile(rb"run sh: [^\n]*swift/cli/rollout\.py[^\n]*?(?:--port[ =](\d+)|\n)")
PROGRAM = re.compile(rb"/cli/((?:\w+/)?\w+)\.py")
SERVED_PORT = re.compile(rb"Uvicorn running on \w+://[^\s:]+:(\d+)")

# Exceptions that say that somebody else has gone, or that a person ended the program.
WAITING = re.compile(
    r"^(?:Connection\w*|\w*Timeout|TimeoutError|TimeoutExpired|BrokenPipe\w*|EOFError|RemoteError"
    r"|Dist(?:Network|Backend|Store)Error)$"
)
INTERRUPTED = re.compile(r"^(?:KeyboardInterrupt|SystemExit|CancelledError|SignalException)$")


@dataclass
class LogFacts:
    """What one log says.

    kernels: Triton's autotuning. infer_calls, bars, bar_seconds: requests of the trainer to a rollout server,
    its finished progress bars of generation, and their total time. size: bytes read. broken: why
    not all of it.
    """

    source: Source
    sightings: list[Sighting] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    cpu_only: bool = False
    infer_calls: int = 0
    bars: int = 0
    bar_seconds: float = 0.0
    size: int = 0
    broken: str = ""


def scan(source: Source, index: int) -> LogFacts:
    """Read a log. `index` orders files whose lines have the same time."""
    return _Scanner(source, index).run()


@dataclass(frozen=True)
class _Place:
    """Where a line is: its number, and its bytes in the block."""

    line: int
    start: int
    end: int


class _Scanner:
    def __init__(self, source: Source, index: int) -> None:
        self.source = source
        self.facts = LogFacts(source)
        self.changed = source.path.stat().st_mtime
        self.sightings = Sightings(index, self.changed)
        self.triggers = _all_triggers(source)
        self.traces: dict[str, Traceback] = {}  # by process
        self.open_lines = 0  # since the last of them began
        # process -> key and line of the exception that it ended with last
        self.unexplained: dict[str, tuple[str, int]] = {}
        self.chained: set[str] = set()
        self.tuning = Autotuning()
        self.quiet = False  # the program ended well: what its threads say on the way out means nothing
        self.programs: set[tuple[str, bytes]] = set()  # that this attempt has started, with their process
        self.started: float | None = None
        self.asked_port = b""
        self.ended = 0  # tracebacks
        self.line = 1

    def run(self) -> LogFacts:
        try:
            for block in _blocks(self.source.path):
                self._read_block(block)
        except UNREADABLE as error:
            self.facts.broken = str(error)
        self.facts.sightings = self.sightings.end(self.facts.size)
        self.facts.kernels = self.tuning.kernels
        return self.facts

    def _read_block(self, block: bytes) -> None:
        self.sightings.begin(block, self.facts.size)
        if self.facts.size < HEAD:
            self._read_head(block)
        if self.source.role == "rollout":
            self._read_bars(block)
        self._read_lines(block)
        self.sightings.end_block()
        if self.sightings.went_on:
            self.sightings.went_on = False
            self.triggers, self.ended = _all_triggers(self.source), 0
        self.facts.size += len(block)

    def _read_lines(self, block: bytes) -> None:
        hot = [trigger for trigger in self.triggers if trigger in block]
        texts = [trigger for trigger in hot if trigger in OWN_TRIGGERS]
        if self.tuning or autotune.FUNCTION in hot:
            texts += autotune.TRIGGERS
        known = _with_triggers(tuple(hot))
        texts += dict.fromkeys(text for pattern in known for text in pattern.literals if text in block)
        if not texts and not self.traces:
            self.line += block.count(b"\n")
            return
        start, before = 0, b""
        for raw in block.splitlines(keepends=True):
            seen = next((text for text in texts if text in raw), None)
            if seen is not None or self.traces:
                self._read_line(raw, _Place(self.line, start, start + len(raw)), seen, before, known)
            start += len(raw)
            self.line += raw.endswith(b"\n")
            before = raw

    def _read_head(self, block: bytes) -> None:
        self.facts.cpu_only = self.facts.cpu_only or any(text in block for text in CPU_ONLY)
        if asked := ASKED_PORT.search(block):
            self.asked_port = asked[1] or b"8000"
        served = SERVED_PORT.search(block)
        if served and self.asked_port and served[1] != self.asked_port:
            moved = finding(
                "D11-port-moved",
                self.source.path,
                self.line + block.count(b"\n", 0, served.start()),
                served[0].decode(),
                "rollout",
                asked=self.asked_port.decode(),
                served=served[1].decode(),
            )
            self.sightings.note(moved.id, lambda: moved, 0, served.start(), served.end())

    def _read_bars(self, block: bytes) -> None:
        self.facts.infer_calls += block.count(INFER_CALL)
        for bar in ROLLOUT_BAR.finditer(block):
            self.facts.bars += 1
            self.facts.bar_seconds += int(bar[2] or 0) * 3600 + int(bar[3]) * 60 + int(bar[4])

    def _read_line(
        self, raw: bytes, place: _Place, seen: bytes | None, before: bytes, known: tuple[Pattern, ...]
    ) -> None:
        if seen in (RUN, START, END, SHUTDOWN):
            self._begin_attempt(raw, seen)
            self._program_began_or_ended(seen)
            return
        self.open_lines += 1
        if self.open_lines > MAX_OPEN_LINES:
            self.traces.clear()  # a process was killed while it wrote its traceback
        at = max(0, raw.find(seen) - WINDOW // 2) if seen and len(raw) > WINDOW else 0
        line = split(ANSI.sub("", raw[at : at + WINDOW].decode(errors="replace")).rstrip())
        if line.body.endswith(BEGIN):  # else it is quoted
            if len(self.traces) < MAX_TRACEBACKS:
                handled = line.level in ("DEBUG", "INFO", "WARNING") or b"Exception ignored in" in before
                self.traces[line.process] = Traceback(handled)
                self.open_lines = 0
        elif CHAINED in line.body:
            self.chained.add(line.process)
        elif seen in autotune.TRIGGERS:
            self.tuning.read(line.body, place.line)
        else:
            self._read_text(line, raw, place, known)

    def _read_text(self, line: Line, raw: bytes, place: _Place, known: tuple[Pattern, ...]) -> None:
        trace = self.traces.get(line.process)
        if trace is not None:
            if line.body[:1].isspace() or not line.body:
                trace.add(line.body)  # a frame, or the program's own source: no message
                return
            if EXCEPTION.match(line.body):
                del self.traces[line.process]
                self._match(line, raw, place, known, trace)
                self.ended += 1
                if self.ended == MAX_ENDED:
                    self.triggers.remove(BEGIN.encode())
                return
            if trace.stranger():
                del self.traces[line.process]
        self._match(line, raw, place, known, None)

    def _begin_attempt(self, raw: bytes, sign: bytes | None) -> None:
        """See whether a program is started that this file has seen before.

        Without the command it is a start that is well after the one before: nodes that share a file start at
        about the same time.
        """
        again = False
        if sign == RUN:
            program = PROGRAM.search(raw)
            run = split(raw.decode(errors="replace")).process, program[1] if program else b""
            again = run in self.programs
            self.programs = {run} if again else self.programs | {run}
        elif sign == START and not self.programs and (stamp := stamps.first(raw, self.changed)):
            again = self.started is not None and stamp[1] > self.started + SLACK_SECONDS
            self.started = stamp[1]
        if again:
            self.sightings.set_aside()
            self.traces.clear()
            self.chained.clear()
            self.unexplained.clear()

    def _program_began_or_ended(self, sign: bytes | None) -> None:
        self.quiet = sign not in (RUN, START)
        if sign == END:
            self.sightings.excuse()
        self.triggers, self.ended = _all_triggers(self.source), 0

    def _match(
        self, line: Line, raw: bytes, place: _Place, known: tuple[Pattern, ...], trace: Traceback | None
    ) -> None:
        unhandled = trace is not None and not trace.handled
        chained = trace is not None and line.process in self.chained
        if trace is not None:
            self.chained.discard(line.process)
        key, ended_at = self.unexplained.get(line.process, ("", 0))
        more = trace is None and bool(key) and place.line - ended_at <= MESSAGE_LINES  # of the message
        for pattern in known:
            if pattern.traceback_only and not unhandled:
                continue
            if not any(literal in raw for literal in pattern.literals):
                continue
            if match := pattern.match(line.body, trace.text if trace else ""):
                loud = trace is not None or more or pattern.kind != "cause" or pattern.lasting
                if not loud and not reports(line, match.start(), pattern.is_exception):
                    continue
                self._explain(pattern, match, line, place, unhandled)
                if pattern.kind == "cause" and ((chained and unhandled) or more):
                    self.sightings.forget(key)
                    self.unexplained.pop(line.process, None)
                return
        if trace is not None and unhandled and not chained and not self.quiet:
            self._leave_unexplained(line, place, trace)

    def _explain(
        self, pattern: Pattern, match: re.Match[str], line: Line, place: _Place, unhandled: bool
    ) -> None:
        # what is usually a warning ended a program here
        kind = "cause" if unhandled and pattern.kind == "warning" else pattern.kind
        if self.quiet and (kind == "consequence" or (kind == "cause" and pattern.level > 0)):
            return

        def make() -> Finding:
            bar = BAR_END.match(line.body[: match.start()])  # a progress bar may stand before it on the line
            at = bar.end() if bar else max(0, match.start() - SHOWN // 2) if len(line.body) > SHOWN else 0
            return Finding(
                id=pattern.id,
                kind=kind,
                file=str(self.source.path),
                line=place.line,
                text=f"{line.process} {line.body[at : at + SHOWN]}".strip(),
                why=filled(pattern.why, match),
                fix=filled(pattern.fix, match),
                evidence=pattern.evidence,
                role=self.source.role or pattern.role,
            )

        key = f"{kind} {pattern.id}"
        self.sightings.note(key, make, pattern.level, place.start, place.end, pattern.lasting)
        if self.sightings.counts[key] == MAX_COUNT:
            self.triggers = [trigger for trigger in self.triggers if not self._saturated(trigger)]

    def _saturated(self, trigger: bytes) -> bool:
        """Whether more lines with this trigger could say nothing new."""
        return trigger not in OWN_TRIGGERS and all(
            self.sightings.counts.get(f"{pattern.kind} {pattern.id}", 0) >= MAX_COUNT
            for pattern in _with_triggers((trigger,))
        )

    def _leave_unexplained(self, line: Line, place: _Place, trace: Traceback) -> None:
        match = EXCEPTION.match(line.body)
        if match is None:
            return
        name = match["name"].rpartition(".")[2]
        key = f"exception {name} {re.sub(r'[0-9]+', '', line.body[match.end() :][:80])}"
        others = sum(known.startswith("exception ") for known in self.sightings.counts)
        if key not in self.sightings and others >= MAX_UNKNOWN:
            return
        self.unexplained[line.process] = key, place.line
        level = 2 if WAITING.match(name) else 1 if INTERRUPTED.match(name) else 0
        where = trace.place()
        seen = finding(
            ("exception", "interrupted", "exception-waiting")[level],
            self.source.path,
            place.line,
            f"{line.process} {line.body[:SHOWN]}".strip(),
            self.source.role,
            place=f"; it comes from {where}" if where else "",
        )
        self.sightings.note(key, lambda: seen, level, place.start, place.end)


def _all_triggers(source: Source) -> list[bytes]:
    return list(COMPLETIONS_TRIGGERS if source.kind == "completions" else (*triggers(), *OWN_TRIGGERS))


@lru_cache(maxsize=1024)
def _with_triggers(seen: tuple[bytes, ...]) -> tuple[Pattern, ...]:
    """The patterns that a line with one of these triggers may match, in their order."""
    return tuple(p for p in patterns() if any(trigger in own for own in p.triggers for trigger in seen))


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield a file in blocks of about BLOCK bytes that end at the end of a line, if lines are not longer."""
    rest = b""
    broken: Exception | None = None
    with opened(path) as content:
        while broken is None:
            pieces, size = [rest], 0
            try:
                # read1: what was unpacked before the place where a .gz file is cut is not lost
                while size < BLOCK and (piece := content.read1(BLOCK - size)):
                    pieces.append(piece)
                    size += len(piece)
            except UNREADABLE as error:
                broken = error
            if size == 0:
                break
            block = b"".join(pieces)
            cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1 or len(block)
            rest = block[cut:]
            yield block[:cut]
    if rest:
        yield rest
    if broken is not None:
        raise broken
