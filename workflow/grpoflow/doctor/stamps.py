"""Time stamps in log lines, as seconds since the epoch.

torch and vLLM write no year: it is taken from the time of the file's last change. Times without a zone are
local.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
CLOCK = rb"(\d\d):(\d\d):(\d\d)"
STAMP = re.compile(
    rb"(?P<iso>\b20(\d\d)-(\d\d)-(\d\d)[T _]" + CLOCK + rb"(?:[.,]\d+)?(?P<zone>Z|[+-]\d\d:\d\d)?)"
    rb"|(?P<torch>\[?[EWIF](\d\d)(\d\d) " + CLOCK + rb")"  # [W1130 15:37:57.689116109 utils.cpp:68]
    rb"|(?P<vllm>\b(\d\d)-(\d\d) " + CLOCK + rb"\b)"  # INFO 11-30 12:00:00 [core.py:708]
    rb"|(?P<ctime>\b([A-Z][a-z]{2}) +(\d{1,2}) " + CLOCK + rb" (20\d\d))"  # [Mon Nov 30 12:00:00 2026]
)
SKEW = timedelta(days=1)


def parse(match: re.Match[bytes], changed: float) -> float | None:
    """Return the time of a match of `STAMP` in a file that was last changed at `changed`; None for nonsense.

    A time more than a day after the last change is no stamp of this log.
    """
    numbers = [group.decode() for group in match.groups() if group is not None][1:]
    last = datetime.fromtimestamp(changed)
    try:
        if match["iso"]:
            found = datetime.fromisoformat(match["iso"].decode().replace("_", "T").replace(",", "."))
            found = found.astimezone().replace(tzinfo=None)
        elif match["ctime"]:
            month, day, hour, minute, second, year = numbers
            found = datetime(
                int(year), MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second)
            )
        else:
            month, day, hour, minute, second = (int(number) for number in numbers)
            found = datetime(last.year, month, day, hour, minute, second)
            if found > last + SKEW:
                found = found.replace(year=last.year - 1)
    except ValueError:
        return None
    return found.timestamp() if found <= last + SKEW else None


def first(block: bytes, changed: float) -> tuple[int, float] | None:
    """Offset and time of the first stamp in a piece of a log."""
    for match in STAMP.finditer(block):
        if (when := parse(match, changed)) is not None:
            return match.start(), when
    return None


def last(block: bytes, changed: float) -> tuple[int, float] | None:
    """Offset and time of the last stamp in a piece of a log."""
    for match in reversed(list(STAMP.finditer(block))):
        if (when := parse(match, changed)) is not None:
            return match.start(), when
    return None
