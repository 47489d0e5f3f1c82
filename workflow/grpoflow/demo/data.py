"""Write the data of the arithmetic task: `python -m grpoflow.demo.data OUT`. Standard library only.

A prompt is a phrasing with two digits in it, the answer their sum in `<answer>` tags. `sft.jsonl` teaches
format and a noisy answer: right with probability `p_right`, else drawn from all sums. With 0.7, 80 to 120
steps of SFT (batch 64, learning rate 5e-3) end at 0.25 to 0.45 right answers, from where GRPO rises. 400 of
the 960 combinations of phrasing and digits are kept for `val.jsonl` and occur in no training file; each pair
of digits occurs in training under other phrasings, so that the held-out reward can rise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path
from typing import Any

from grpoflow.demo.files import complete_directory

DIGITS = 4  # operands 0..3
VAL_PROMPTS = 400
SFT_ROWS = 6000
# few digits, and operands close together: with 10 digits, or with words between them, 60 steps of SFT end at
# chance, and from there GRPO does not move
_ASK = (
    "What is {sum}?",
    "Compute {sum}.",
    "Find {sum}.",
    "Give {sum}.",
    "Tell me {sum}.",
    "Add {sum}.",
    "{sum} =",
    "{sum} is?",
    "{sum} makes?",
    "How much is {sum}?",
    "Sum {sum}.",
    "Total of {sum}?",
    "Answer {sum}.",
    "Now {sum}.",
    "Number {sum}?",
    "So {sum} is what?",
    "Think: {sum}.",
    "Then {sum}?",
    "Please compute {sum}.",
    "Say {sum}.",
)
_SUM = ("{a} + {b}", "{a}+{b}", "{a} plus {b}")
PHRASINGS = tuple(ask.format(sum=total) for total in _SUM for ask in _ASK)


def _row(phrasing: str, a: int, b: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": phrasing.format(a=a, b=b)}], "solution": str(a + b)}


def rows(p_right: float, seed: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of `sft`, `train` and `val`; each has `messages` and, as a string, `solution`."""
    rng = random.Random(seed)
    combinations = list(itertools.product(PHRASINGS, range(DIGITS), range(DIGITS)))
    rng.shuffle(combinations)
    val, train = combinations[:VAL_PROMPTS], combinations[VAL_PROMPTS:]
    sft = []
    for index in range(SFT_ROWS):
        row = _row(*train[index % len(train)])
        answer = row["solution"] if rng.random() < p_right else str(rng.randint(0, 2 * DIGITS - 2))
        row["messages"].append({"role": "assistant", "content": f"<answer>{answer}</answer>"})
        sft.append(row)
    rng.shuffle(sft)
    return {"sft": sft, "train": [_row(*c) for c in train], "val": [_row(*c) for c in val]}


def write(out: Path, p_right: float = 0.7, seed: int = 0) -> None:
    """Write sft.jsonl, train.jsonl and val.jsonl to directory `out`.

    Raises ValueError if p_right is not a probability.
    """
    if not 0.0 <= p_right <= 1.0:
        raise ValueError(f"p_right: {p_right} is not a probability; use a value from 0 to 1")
    with complete_directory(out) as temporary:
        for name, content in rows(p_right, seed).items():
            (temporary / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the data of the arithmetic task.")
    parser.add_argument("out", type=Path, help="directory to write; an older one is replaced")
    parser.add_argument(
        "--p-right", type=float, default=0.7, help="share of right answers in sft.jsonl (default 0.7)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.out, args.p_right, args.seed)


if __name__ == "__main__":
    main()
