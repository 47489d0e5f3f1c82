"""Rewards of the arithmetic demo, loaded by ms-swift with `--external_plugins config/rewards/arithmetic.py`.

Column `solution` of the data set holds the right answer as a string. Both rewards are 0 or 1 per completion.
"""

from __future__ import annotations

import re
from typing import Any

from swift.rewards import ORM, orms

_ANSWER = re.compile(r"<answer>\s*(-?\d+)\s*</answer>")
# with --enable_thinking false ms-swift puts the empty think block in front of the completion
_WELL_FORMED = re.compile(r"(?s)(?:.*</think>)?\s*<answer>\s*-?\d+\s*</answer>\s*")


class ArithmeticAccuracy(ORM):  # type: ignore[misc]
    """1 if the last `<answer>` is the solution."""

    def __call__(self, completions: list[str], solution: list[str], **_columns: Any) -> list[float]:
        rewards = []
        for completion, right in zip(completions, solution, strict=True):
            answers = _ANSWER.findall(completion)
            rewards.append(1.0 if answers and answers[-1] == str(right).strip() else 0.0)
        return rewards


class ArithmeticFormat(ORM):  # type: ignore[misc]
    """1 if the completion is one `<answer>` with a whole number and nothing else after the thinking."""

    def __call__(self, completions: list[str], **_columns: Any) -> list[float]:
        return [1.0 if _WELL_FORMED.fullmatch(completion) else 0.0 for completion in completions]


orms["arithmetic_accuracy"] = ArithmeticAccuracy
orms["arithmetic_format"] = ArithmeticFormat
