"""Rewards of the arithmetic demo, loaded by ms-swift with `--external_plugins config/rewards/arithmetic.py`.

Column `solution` of the data set holds the right answer as a string. Both rewards are 0 or 1 per completion.
"""

from __future__ import annotations

import re
from typing import Any

from swift.rewards import ORM, orms

# with --enable_thinking false ms-swift puts the empty think block in front of the completion
_WELL_FORMED = re.compile(r"(?s)(?:.*</think>)?\s*<answer>\s*(-?\d+)\s*</answer>\s*")


class ArithmeticAccuracy(ORM):  # type: ignore[misc]
    """1 if the completion is one `<answer>` with the solution and nothing else after the thinking.

    A first form took the last `<answer>` wherever it stood. The policy found that: completions
    grew from 8 to 16 tokens, with several answers in them, and the reward ended below where it had started
    (tests/data/logs/reward_hacking).
    """

    def __call__(self, completions: list[str], solution: list[str], **_columns: Any) -> list[float]:
        answers = [_WELL_FORMED.fullmatch(completion) for completion in completions]
        return [
            1.0 if answer and answer[1] == str(right).strip() else 0.0
            for answer, right in zip(answers, solution, strict=True)
        ]


class ArithmeticFormat(ORM):  # type: ignore[misc]
    """1 if the completion is one `<answer>` with a whole number, right or wrong."""

    def __call__(self, completions: list[str], **_columns: Any) -> list[float]:
        return [1.0 if _WELL_FORMED.fullmatch(completion) else 0.0 for completion in completions]


orms["arithmetic_accuracy"] = ArithmeticAccuracy
orms["arithmetic_format"] = ArithmeticFormat
