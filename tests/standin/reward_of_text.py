"""A reward that an untrained model also gets: a function of the text alone, different for most texts."""

from __future__ import annotations

import zlib
from typing import Any

from swift.rewards import ORM, orms


class TextReward(ORM):
    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        return [zlib.crc32(text.encode()) % 101 / 100 for text in completions]


orms["reward_of_text"] = TextReward
