"""Whether a line reports an error, or only quotes its text: a prompt or a completion that was printed."""

from __future__ import annotations

import re

from .tracebacks import EXCEPTION, Line

BAR = re.compile(r".*?\d+%\|[^|]*\|.*?(?:it/s|s/it)[^\]]*\]\s*")
STAMP = re.compile(
    r"\[?[^\[\]]{0,40}?\d\d:\d\d:\d\d[^\[\]]{0,40}\] *|[^\[\]]{0,40}?\d\d:\d\d:\d\d[\d.,]*Z? +"
)
# Keys of rows, borders of tables and the marks of chat templates.
CONTENT = re.compile(
    r"""['"]\s*:\s*\[?\s*['"]|[│┃]|<\|im_start\|>|</?(?:think|answer)>"""
    r"|^\W*(?:prompt|completion|response|question|answer|user|assistant|system|content|messages?|input|labels?)"
    r"s?\]?\s*:",
    re.IGNORECASE,
)
ALARM = re.compile(
    r"\W*(?:[EF]\d{4} |ERROR\b|FATAL\b|CRITICAL\b|Fatal\b|fatal\b|error: |terminate called|what\(\))"
    r"|.*\bNCCL (?:WARN|ERROR)\b|nccl\w*Error\b"
    r"|[\w./-]+: (?:.*\b(?:error|cannot|failed)\b.*: )?$"  # a program of the shell, up to the text
)


def reports(line: Line, at: int, exception: bool) -> bool:
    """Whether the line reports the text at `at`; `exception`: the text is the message of an exception.

    For lines outside of tracebacks. Such a message stands behind the name of an exception, behind what calls
    it an error, or at the beginning of the line; other texts may stand anywhere but in content.
    """
    if line.level in ("ERROR", "CRITICAL"):
        return True
    if line.level in ("DEBUG", "INFO"):
        return False
    body = line.body
    for prefix in (BAR, STAMP):
        found = prefix.match(body)
        if found and found.end() <= at and not ALARM.match(body):
            body, at = body[found.end() :], at - found.end()
    head = body[:at]
    if CONTENT.search(head):
        return False
    return not exception or not head.strip() or bool(EXCEPTION.match(body) or ALARM.match(head))
