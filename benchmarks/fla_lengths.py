"""How fast a Qwen3.5 trains while sequence lengths are new, and after they are known.

    TRITON_CACHE_DIR=$(mktemp -d) TRITON_PRINT_AUTOTUNING=1 python benchmarks/fla_lengths.py MODEL

MODEL is a directory with config.json; weights are random. Needs torch and transformers, and a GPU for
flash-linear-attention; without that package transformers computes the gated delta rule in torch. The l2norm
kernels of flash-linear-attention are tuned again for each bucket of rows (tokens x heads): of 2,048 rows up
to 0.4.1, of 65,536 since 0.4.2 (flash-linear-attention#758). Eight lengths lie in eight buckets of 128 tokens
(2,048 rows at 16 heads), so the first pass tunes, the second does not, and the third has other lengths in the
same buckets.
"""

from __future__ import annotations

import random
import sys
import time
from importlib.metadata import PackageNotFoundError, version

import torch
from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

BUCKET = 128
HIGHEST_TOKEN = 240_000


def lengths() -> dict[str, list[int]]:
    """Tokens of the steps of each pass."""
    rng = random.Random(1)
    buckets = [8 + 3 * i for i in range(8)]
    rng.shuffle(buckets)
    new, others = ([BUCKET * bucket + rng.randrange(1, BUCKET) for bucket in buckets] for _ in range(2))
    return {"new lengths": new, "the same again": new, "others in the same buckets": others}


def main(path: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.from_pretrained(path)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen3_5ForConditionalGeneration(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    highest = min(HIGHEST_TOKEN, config.text_config.vocab_size)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def step(tokens: int) -> float:
        """Seconds of forward, backward and update."""
        ids = torch.randint(0, highest, (1, tokens), device=device)
        wait()
        start = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wait()
        return time.perf_counter() - start

    try:
        print(f"fla-core {version('fla-core')}, torch {torch.__version__}, {device}")
    except PackageNotFoundError:
        print(f"no fla-core, torch {torch.__version__}, {device}")
    print(f"first step {step(600):.1f} s, second {step(600):.3f} s", flush=True)
    for name, steps in lengths().items():
        seconds = sum(step(tokens) for tokens in steps)
        print(
            f"{name}: {sum(steps)} tokens, {seconds:.2f} s, {sum(steps) / seconds:.0f} tokens/s", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1])
