"""Python tracebacks in logs into which several processes write at once.

Lines of one process are told from others by what launchers put in front of them: ` 3: ` (srun -l, padded),
`[default3]:` (torchrun), `[rank3]: ` (torch), `(EngineCore_DP0 pid=123) ` (vLLM). Behind that may stand a
logger's own prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

BEGIN = "Traceback (most recent call last):"
CHAINED = "above exception"
LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
PREFIX = re.compile(
    r"(?P<process>(?: {0,5}\d+:(?: |$))?(?:\[[A-Za-z_]+\d+\]: ?)*(?:\([^()]*\b(?:pid|rank)=[^()]*\) ?)?)"
    rf"(?:(?P<vllm>{LEVELS}) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]*\] ?"
    rf"|\[(?P<swift>{LEVELS}):[\w.]+\] ?"
    rf"|\d{{4}}-\d\d-\d\d[ T][\d:.,]+ - [\w.]+ - (?P<python>{LEVELS}) - )?"
)
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
# The last line of a traceback: the class, which may stand alone, and the message.
EXCEPTION = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Iteration|Expired|Timeout|Empty|Full"
    r"|Again|Failed|Cancelled|Signal|Warning|Refused)|(?:[A-Za-z_]\w*\.)+[A-Z]\w*)(?::\s|:?$)"
)
PATIENCE = 200
BODY_LINES = 60


@dataclass(frozen=True)
class Line:
    """A log line taken apart. level: the logger's, "" if none wrote it."""

    process: str
    level: str
    body: str


def split(text: str) -> Line:
    """Take the prefixes off a log line."""
    match = PREFIX.match(text)
    if match is None:
        return Line("", "", text)
    level = match["vllm"] or match["swift"] or match["python"] or ""
    return Line(match["process"].strip(), level, text[match.end() :])


@dataclass
class Traceback:
    """A traceback that has begun and not ended.

    handled: a program logged it as information or warning, or Python ignored it: it went on.
    """

    handled: bool
    frames: list[re.Match[str]] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    strangers: int = 0

    def add(self, body: str) -> None:
        if frame := FRAME.match(body):
            self.frames.append(frame)
            del self.frames[:-BODY_LINES]
        self.body.append(body[:300])
        del self.body[:-BODY_LINES]

    def stranger(self) -> bool:
        """Count a line that does not belong here; True when the end will not come any more."""
        self.strangers += 1
        return self.strangers > PATIENCE

    @property
    def text(self) -> str:
        return "\n".join(self.body)

    def place(self) -> str:
        """Where it happened: the last frame outside the installed packages, else the last frame."""
        if not self.frames:
            return ""
        ours = [
            frame for frame in self.frames if not re.search(r"-packages/|/lib/python|<frozen", frame["file"])
        ]
        frame = (ours or self.frames)[-1]
        return f"{frame['file']}:{frame['line']} in {frame['name']}"
