"""Count the tokens of texts with the tokenizer of a checkpoint, without torch.

    python -m grpoflow.training_env.token_lengths TOKENIZER.json < TEXTS.json > LENGTHS.json

Texts are a JSON list of strings, lengths a JSON list of integers in the same order.
"""

from __future__ import annotations

import json
import sys

from tokenizers import Tokenizer


def main(argv: list[str]) -> int:
    tokenizer = Tokenizer.from_file(argv[0])
    texts = json.load(sys.stdin)
    json.dump([len(encoded.ids) for encoded in tokenizer.encode_batch(texts)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
