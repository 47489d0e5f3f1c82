"""Load two Hugging Face directories with transformers and compare their logits on prompts.

    python -m grpoflow.training_env.compare_logits OURS THEIRS PROMPTS.jsonl REPORT.json [ADAPTER]

With ADAPTER, a LoRA adapter is put onto OURS with PEFT, and THEIRS is the model into which it was merged.

Exit code 1 when the logits differ, or when they are not finite. Equal files must give equal logits: the
tolerance of the largest difference of a log-probability only covers another type of the weights. An adapter
adds in another order than merged weights, whose sums are rounded to the type of the weights: there the mean
difference decides, against that tolerance or against what the adapter changes, whichever is larger.
"""

from __future__ import annotations

import gc
import json
import sys
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

PROMPTS = 8
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 6e-2}
SHARE = 0.25
"""Of what an adapter changes, how much may be left between it and the merged weights."""


def load(directory: Path) -> Any:
    """Load the model that a directory holds, spread over the GPUs if there are any: one does not hold 122B.

    Raises:
        SystemExit: it lacks weights.
    """
    vision = hasattr(AutoConfig.from_pretrained(directory), "vision_config")
    auto = AutoModelForImageTextToText if vision else AutoModelForCausalLM
    # where there is a GPU, transformers takes flash-linear-attention's kernels, which know no CPU tensors
    place = {"device_map": "auto"} if torch.cuda.is_available() else {}
    model, loading = auto.from_pretrained(directory, dtype="auto", output_loading_info=True, **place)
    if loading["missing_keys"]:  # transformers would initialise them at random and only warn
        raise SystemExit(f"{directory} lacks weights of its model: {sorted(loading['missing_keys'])}")
    return model.eval()


def with_adapter(model: Any, adapter: Path) -> Any:
    """Put a LoRA adapter onto its model.

    Raises:
        SystemExit: PEFT does not hold exactly the tensors of the file; it would only warn.
    """
    from peft import PeftModel, get_peft_model_state_dict  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    adapted = PeftModel.from_pretrained(model, adapter)
    held = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    stored = load_file(adapter / "adapter_model.safetensors")
    if held.keys() != stored.keys():
        differing = sorted(held.keys() ^ stored.keys())
        raise SystemExit(f"{adapter} does not fit its model in {len(differing)} tensors: {differing[:10]}")
    for name, tensor in stored.items():
        if not torch.equal(held[name].cpu().to(tensor.dtype), tensor):
            raise SystemExit(f"{adapter}: PEFT holds other values of {name}")
    return adapted.eval()


def token_ids(directory: Path, prompts: Path) -> list[torch.Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    found = []
    with prompts.open(encoding="utf-8") as content:
        for line in islice(content, PROMPTS):
            messages = json.loads(line)["messages"]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            found.append(tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids)
    return found


def log_probabilities(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Next-token log-probabilities at every position of a prompt, [length, vocabulary]."""
    with torch.no_grad():
        logits = model(input_ids=ids.to(model.device)).logits[0].float()
    return logits.log_softmax(-1).cpu()


def weights_dtype(directory: Path) -> torch.dtype:
    config = AutoConfig.from_pretrained(directory)
    dtype = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.bfloat16


def main(argv: list[str]) -> int:
    ours, theirs, prompts, report, *adapter = (Path(argument) for argument in argv)
    model = load(theirs)
    expected = [log_probabilities(model, ids) for ids in token_ids(theirs, prompts)]
    # the GPUs may not hold two of them
    del model
    gc.collect()
    torch.cuda.empty_cache()
    model = load(ours)
    model = with_adapter(model, adapter[0]) if adapter else model
    largest, means, without = 0.0, [], []
    finite = True
    for ids, theirs_of in zip(token_ids(ours, prompts), expected, strict=True):
        ours_of = log_probabilities(model, ids)
        finite = finite and bool(ours_of.isfinite().all())
        difference = (ours_of - theirs_of).abs()
        largest = max(largest, difference.max().item())
        means.append(difference.mean().item())
        if adapter:
            with model.disable_adapter():
                without.append((log_probabilities(model, ids) - theirs_of).abs().mean().item())
    coarsest = max(TOLERANCE[weights_dtype(ours)], TOLERANCE[weights_dtype(theirs)])
    facts: dict[str, Any] = {"prompts": len(means), "largest_difference": largest}
    if adapter:
        facts |= {"mean_difference": fmean(means), "without_adapter": fmean(without)}
        coarsest = max(coarsest, SHARE * facts["without_adapter"])
    facts |= {"tolerance": coarsest, "finite": finite}
    report.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(facts))
    return 0 if finite and facts.get("mean_difference", largest) <= coarsest else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
