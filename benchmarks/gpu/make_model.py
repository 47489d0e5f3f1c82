"""Build a randomly initialised Qwen3.5 of a released shape: `python make_model.py OUT CONFIG.json`.

CONFIG.json is the configuration of a released checkpoint (tests/data/configs has them). Tokenizer, chat
template and processors are those of the demo model, so that the arithmetic data fit; the vocabulary keeps its
released size. bfloat16, seed 0. Runs in the training environment, on the GPU where there is one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers as hf
from grpoflow.demo.model import build

IDS_OF_TEXT = ("eos_token_id", "pad_token_id", "bos_token_id")
BRANCH_ENDS = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
IDS_OF_VISION = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


def scale_residual_branches(model: torch.nn.Module, layers: int) -> None:
    """Make the last matrix of every branch smaller by sqrt(2 x layers), as GPT-2 does: with the plain
    initialisation 24 layers learned the format of an answer in 200 steps, but not the sum."""
    for name, weight in model.named_parameters():
        if name.endswith(BRANCH_ENDS):
            weight.data.mul_((2 * layers) ** -0.5)


def main(out: Path, shape: Path) -> None:
    build(out, "vlm")
    demo = json.loads((out / "config.json").read_text())
    config = json.loads(shape.read_text())
    text, demo_text = config["text_config"], demo["text_config"]
    config |= {name: demo[name] for name in IDS_OF_VISION}
    text |= {name: demo_text[name] for name in IDS_OF_TEXT if name in demo_text}
    # transformers fills a missing value with false, and mcore-bridge 1.6.5 prefers this one to the outer one
    text["tie_word_embeddings"] = config["tie_word_embeddings"]
    (out / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    settings = hf.AutoConfig.from_pretrained(out)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = hf.AutoModelForImageTextToText.from_config(settings, dtype=torch.bfloat16)
    scale_residual_branches(model, text["num_hidden_layers"])
    generation = hf.GenerationConfig.from_pretrained(out)
    model.generation_config = generation
    (out / "model.safetensors").unlink()
    model.save_pretrained(out)
    print(f"{out}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
