"""Names of a model's modules: those of Hugging Face, and those of Megatron, which joins some of them."""

from __future__ import annotations

from collections.abc import Sequence

COMMON = ("all-linear", "all-embedding", "all-router")
# Megatron's module -> the modules of Hugging Face that it is made of
MADE_OF = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
    "word_embeddings": ("embed_tokens",),
    "output_layer": ("lm_head",),
}
BY_MODULE = ("target_modules", "modules_to_save")
OTHER_NAMES = (
    *("target_regex", "target_parameters", "freeze_parameters", "freeze_parameters_regex"),
    *("trainable_parameters", "trainable_parameters_regex"),
)
"""Arguments with names or patterns that no table can translate."""


def to_megatron(names: Sequence[str]) -> list[str] | str:
    """The modules of Megatron that consist of just these, or why there are none."""
    left = [name for name in names if name not in COMMON]
    found = [name for name in names if name in COMMON]
    for module, parts in MADE_OF.items():
        given = [part for part in parts if part in left]
        if given and len(given) < len(parts):
            return f"Megatron has {', '.join(parts)} as one module, {module}"
        if given:
            found.append(module)
            left = [name for name in left if name not in parts]
    return f"not known by this name in Megatron: {', '.join(left)}" if left else found


def to_swift(names: Sequence[str]) -> list[str] | str:
    """The modules of Hugging Face that these consist of, or why there are none."""
    unknown = [name for name in names if name not in {*COMMON, *MADE_OF}]
    if unknown:
        return f"not known by this name in Hugging Face's model: {', '.join(unknown)}"
    return [part for name in names for part in MADE_OF.get(name, (name,))]
