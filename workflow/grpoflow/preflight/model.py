"""What config.json of the starting checkpoint asks of the programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .rules import Finding, rule
from .subject import Subject


@rule(evidence="transformers 5.12.1 models/qwen3_5/configuration_qwen3_5.py")
def model_config_is_whole(subject: Subject) -> Iterator[Finding]:
    """Protects from a config.json that is torn or edited wrongly: programs stop at it, or build a model of
    another size with the defaults of transformers."""
    if subject.broken_model:
        legal = ("the directory with the config.json that the model was published with",)
        yield Finding("model.path", subject.config.model.path, subject.broken_model, legal)


@rule(
    evidence="mcore-bridge 1.6.5 mcore_bridge/model/mm_gpts/qwen3_5.py:127 (qwen3_5, qwen3_5_moe), "
    "swift megatron/arguments/megatron_args.py:879",
    needs="architecture",
)
def megatron_knows_the_model(subject: Subject) -> Iterator[Finding]:
    """Protects from a text-only checkpoint with Megatron-SWIFT: 'Model: ... is not supported.'"""
    arch, config = subject.architecture, subject.config
    if arch is None or arch.vision is not None:
        return
    for name, tuner in (("trainer", config.trainer), ("sft", config.sft)):
        if tuner is not None and tuner.backend == "megatron":
            why = (
                f"config.json says model_type {arch.model_type}: mcore-bridge has Qwen3.5 with its vision "
                "tower only (qwen3_5, qwen3_5_moe), and Megatron-SWIFT ends with 'is not supported'"
            )
            yield Finding(f"{name}.backend", "megatron", why, ("swift",))


@rule(
    evidence="mcore-bridge 1.6.5 mcore_bridge/config/parser.py:177-194, transformers 5.12.1 "
    "modeling_utils.py (get_expanded_tied_weights_keys), models/qwen3_5/configuration_qwen3_5.py",
    needs="architecture",
)
def embeddings_are_tied_alike(subject: Subject) -> Iterator[Finding]:
    """Protects from an output layer that some programs tie to the embedding and others leave unset or add.

    transformers and vLLM read the outer tie_word_embeddings, mcore-bridge the one of text_config where there
    is one. transformers writes the inner one with its default, false, whenever it saves a configuration that
    lacks it: the checkpoint of the `sft` stage then has it.
    """
    config = subject.config
    outer = subject.hf_config.get("tie_word_embeddings")
    text = subject.hf_config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    tied = "true in both places" if outer else "false in both places"
    if outer is not None and inner is not None and bool(outer) != bool(inner):
        why = (
            f"config.json says tie_word_embeddings {_json(outer)}, its text_config says {_json(inner)}: "
            "transformers and vLLM follow the first, mcore-bridge the second: an output layer is added, lost "
            f"or left unset on the way. {_head(Path(config.model.path))}"
        )
        yield Finding("model.path", config.model.path, why, (f"tie_word_embeddings: {tied}",))
    elif outer and inner is None and config.sft is not None and config.trainer.backend == "megatron":
        why = (
            "config.json says tie_word_embeddings true and its text_config says nothing: the sft stage saves "
            "text_config with transformers' default, false, which mcore-bridge believes: GRPO would start "
            "with an output layer that nothing was loaded into"
        )
        yield Finding("model.path", config.model.path, why, (f"tie_word_embeddings: {tied}",))


def _head(directory: Path) -> str:
    """What the weights themselves say, where they are there."""
    names: set[str] = set()
    try:
        for path in directory.glob("*.safetensors"):
            with path.open("rb") as file:  # 8 bytes: the length of the JSON that follows
                names |= set(json.loads(file.read(int.from_bytes(file.read(8), "little"))))
    except (OSError, ValueError, MemoryError, OverflowError):
        names = set()
    if not names:
        return "Keep the value that fits the weights (true if they have no lm_head.weight)"
    has = "lm_head.weight" in names
    return f"The weights have {'an' if has else 'no'} lm_head.weight, which fits {'false' if has else 'true'}"


def _json(value: object) -> str:
    return "true" if value else "false"
