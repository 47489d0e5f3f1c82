"""Triton's autotuning messages (TRITON_PRINT_AUTOTUNING=1), counted per kernel.

Triton 3.x prints four lines per tuning (triton/runtime/autotuner.py:286): the function, the key, the seconds,
the best configuration. Older ones print one line without the key.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

FUNCTION, KEY, SECONDS = TRIGGERS = (b"Triton autotuning for function", b"with key as (", b"finished after ")
FUNCTION_NAME = re.compile(r"Triton autotuning for function (\w+)")
KEY_TEXT = re.compile(r"with key as (\(.*)")
SECONDS_TEXT = re.compile(r"finished after ([\d.]+)s")
MAX_KEYS = 4096
MAX_OPEN = 64


@dataclass
class Kernel:
    """Seconds per distinct key of one kernel, the longest of all ranks. line: the first time."""

    line: int
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


class Autotuning:
    """Collects the messages of one log, also when those of several processes are mixed line by line."""

    def __init__(self) -> None:
        self.kernels: dict[str, Kernel] = {}
        self._open: deque[list[str]] = deque(maxlen=MAX_OPEN)

    def __bool__(self) -> bool:
        """Whether a message has begun whose end is still to come."""
        return bool(self._open)

    def read(self, text: str, line: int) -> None:
        if function := FUNCTION_NAME.search(text):
            self._open.append([function[1], ""])
        if self._open and (key := KEY_TEXT.search(text)):
            without_key = (message for message in self._open if not message[1])
            next(without_key, self._open[-1])[1] = key[1]
        if self._open and (seconds := SECONDS_TEXT.search(text)):
            name, key_text = self._open.popleft()
            self._add(self.kernels.setdefault(name, Kernel(line)), key_text, float(seconds[1]))

    def _add(self, kernel: Kernel, key: str, seconds: float) -> None:
        identity = hash(key) if key else len(kernel.seconds)  # without keys every message counts
        if identity in kernel.seconds or len(kernel.seconds) < MAX_KEYS:
            kernel.seconds[identity] = max(seconds, kernel.seconds.get(identity, 0.0))
