"""Load two Hugging Face directories with transformers and compare their logits on prompts.

    python -m grpoflow.training_env.compare_logits OURS THEIRS PROMPTS.jsonl REPORT.json

Exit code 1 when the largest difference of a log-probability exceeds the tolerance, or when both are not
finite. Equal files must give equal logits: the tolerance only covers another type of the weights.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

PROMPTS = 8
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def log_probabilities(directory: Path, prompts: Path) -> list[torch.Tensor]:
    """Next-token log-probabilities at every position of each prompt; a list of [length, vocabulary]."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    config = AutoConfig.from_pretrained(directory)
    vision = hasattr(config, "vision_config")
    auto = AutoModelForImageTextToText if vision else AutoModelForCausalLM
    # where there is a GPU, transformers takes flash-linear-attention's kernels, which know no CPU tensors
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, loading = auto.from_pretrained(directory, dtype="auto", output_loading_info=True)
    if loading["missing_keys"]:  # transformers would initialise them at random and only warn
        raise SystemExit(f"{directory} lacks weights of its model: {sorted(loading['missing_keys'])}")
    model.eval().to(device)
    results = []
    with prompts.open(encoding="utf-8") as content:
        for line in islice(content, PROMPTS):
            messages = json.loads(line)["messages"]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
            with torch.no_grad():
                logits = model(input_ids=ids.to(device)).logits[0].float()
            results.append(logits.log_softmax(-1).cpu())
    return results


def weights_dtype(directory: Path) -> torch.dtype:
    config = AutoConfig.from_pretrained(directory)
    dtype = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.bfloat16


def main(argv: list[str]) -> int:
    ours, theirs, prompts, report = (Path(argument) for argument in argv)
    pairs = list(zip(log_probabilities(ours, prompts), log_probabilities(theirs, prompts), strict=True))
    difference = max((x - y).abs().max().item() for x, y in pairs)
    coarsest = max(TOLERANCE[weights_dtype(ours)], TOLERANCE[weights_dtype(theirs)])
    finite = all(x.isfinite().all().item() for x, _ in pairs)
    facts = {"prompts": len(pairs), "largest_difference": difference, "tolerance": coarsest, "finite": finite}
    report.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(facts))
    return 0 if finite and difference <= coarsest else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
