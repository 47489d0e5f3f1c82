"""Build a tiny, randomly initialised Qwen3.5 checkpoint: `python -m grpoflow.demo.model OUT --kind vlm`.

Runs in the CPU environment (torch, transformers, tokenizers); needs no network: the tokenizer is trained
here. The checkpoint has the files, names and layer types of a real one (3 Gated DeltaNet layers to 1
attention layer, gated attention, multimodal rope), so that ms-swift, Megatron and vLLM take their real code
paths. Equal arguments give equal bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX, Qwen3_5Tokenizer

from grpoflow.demo.files import complete_directory

KINDS = ("text", "vlm", "moe_text", "moe_vlm")

# in the order of the released Qwen3.5 tokenizer
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
WORD_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)

HIDDEN = 64
LAYERS = 4
# vLLM's CPU kernel for Gated DeltaNet accepts head sizes 64 and 128 only ("Unexpected head dim size")
GDN_HEAD_DIM = 64
MAX_TOKENS = 4096
TRAINED_VOCABULARY = 512
# with 0.02, as in real models, so small a network hardly learns in 80 steps
INITIALIZER_RANGE = 0.1

CHAT_TEMPLATE = r"""{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n<think>\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '\n</think>\n\n' }}
{%- endif %}
{%- endif %}"""


def _corpus() -> Iterator[str]:
    """Text like the arithmetic task's, to train the tokenizer on."""
    rng = random.Random(0)
    words = [
        "add",
        "sum",
        "what",
        "is",
        "the",
        "answer",
        "plus",
        "compute",
        "number",
        "digit",
        "user",
        "assistant",
        "think",
        "step",
        "so",
        "then",
    ]
    for _ in range(3000):
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        yield f"What is {a} + {b}? <answer>{a + b}</answer>\n"
        yield " ".join(rng.choice(words) for _ in range(8)) + ".\n"


def _write_tokenizer(out: Path) -> Any:
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TRAINED_VOCABULARY - len(SPECIAL_TOKENS) - len(WORD_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    bpe.train_from_iterator(_corpus(), trainer)
    trained = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen3_5Tokenizer(
        vocab=trained["vocab"],
        merges=[tuple(merge) for merge in trained["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        model_max_length=MAX_TOKENS,
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS], special_tokens=True
    )
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in WORD_TOKENS])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(out)
    return tokenizer


def _write_processors(out: Path) -> None:
    common = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    image = common | {
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }
    video = common | {
        "size": {"longest_edge": 25165824, "shortest_edge": 4096},
        "video_processor_type": "Qwen3VLVideoProcessor",
    }
    (out / "preprocessor_config.json").write_text(json.dumps(image, indent=2) + "\n")
    (out / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")


def _new_model(kind: str, ids: dict[str, int], vocabulary: int) -> Any:
    moe = kind.startswith("moe")
    text: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "full_attention_interval": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": GDN_HEAD_DIM,
        "linear_value_head_dim": GDN_HEAD_DIM,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": MAX_TOKENS,
        "tie_word_embeddings": False,
        "initializer_range": INITIALIZER_RANGE,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
        },
    }
    if moe:
        text |= {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": HIDDEN,
            "shared_expert_intermediate_size": HIDDEN,
        }
    else:
        text |= {"intermediate_size": 2 * HIDDEN}
    text_config = (hf.Qwen3_5MoeTextConfig if moe else hf.Qwen3_5TextConfig)(**text)
    if kind.endswith("text"):
        return (hf.Qwen3_5MoeForCausalLM if moe else hf.Qwen3_5ForCausalLM)(text_config)
    vision = {
        "depth": 2,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_heads": 4,
        "out_hidden_size": HIDDEN,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 256,
        "in_channels": 3,
    }
    config = (hf.Qwen3_5MoeConfig if moe else hf.Qwen3_5Config)(
        text_config=text_config.to_dict(),
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    return (hf.Qwen3_5MoeForConditionalGeneration if moe else hf.Qwen3_5ForConditionalGeneration)(config)


def build(out: Path, kind: str, seed: int = 0) -> None:
    """Write the checkpoint of `kind` (one of KINDS) to directory `out`: bfloat16 weights, as released models
    have.

    Raises ValueError for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r} is unknown; use one of {', '.join(KINDS)}")
    with complete_directory(out) as temporary:
        tokenizer = _write_tokenizer(temporary)
        ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (*SPECIAL_TOKENS, *WORD_TOKENS)}
        torch.manual_seed(seed)
        model = _new_model(kind, ids, vocabulary=-(-len(tokenizer) // 64) * 64)
        model.generation_config = hf.GenerationConfig(
            eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
            pad_token_id=ids["<|endoftext|>"],
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )
        # the layout of released checkpoints: all experts of a layer in one tensor
        model.to(torch.bfloat16).save_pretrained(temporary, save_original_format=False)
        if kind.endswith("vlm"):
            _write_processors(temporary)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a tiny, randomly initialised Qwen3.5 checkpoint.")
    parser.add_argument("out", type=Path, help="directory to write; an older one is replaced")
    parser.add_argument("--kind", choices=KINDS, default="vlm")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    build(args.out, args.kind, args.seed)


if __name__ == "__main__":
    main()
