"""The starting checkpoint: its kind, its shards, tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .rules import Finding, rule
from .subject import Subject

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
LEGAL = ("a Hugging Face directory with full weights",)


def kind_of(directory: Path) -> str:
    """What a directory holds: "hf", "lora", "mcore", "mcore iteration", "absent" or "unknown"."""
    if not directory.is_dir():
        return "absent"
    if (directory / "adapter_config.json").is_file():
        return "lora"
    if (directory / "config.json").is_file():
        return "hf"
    if (directory / "latest_checkpointed_iteration.txt").is_file() or list(directory.glob("iter_*")):
        return "mcore"
    return "mcore iteration" if list(directory.glob("*.distcp")) else "unknown"


@rule(evidence="ms-swift#4821, ms-swift#6360, ms-swift#4147", needs="checkpoint")
def checkpoint_is_a_full_model(subject: Subject) -> Iterator[Finding]:
    """Protects from an adapter or a Megatron checkpoint where full Hugging Face weights are read."""
    path = subject.config.model.path
    why = {
        "absent": "no such directory",
        "lora": "a LoRA adapter: merge it into its base first (swift export --merge_lora true)",
        "mcore": "a Megatron-core checkpoint: convert it first (megatron export --to_hf true)",
        "mcore iteration": "one iteration of a Megatron-core checkpoint: convert the directory above it",
        "unknown": "holds neither config.json nor a Megatron-core checkpoint",
    }.get(kind_of(Path(path)))
    if why:
        yield Finding("model.path", path, why, LEGAL)


@rule(evidence="ms-swift#8476, safetensors index", needs="checkpoint")
def every_shard_is_there(subject: Subject) -> Iterator[Finding]:
    """Protects from weights that are missing and would be initialised at random."""
    directory = Path(subject.config.model.path)
    if kind_of(directory) != "hf":
        return
    index = directory / "model.safetensors.index.json"
    shards = {path.name: path.stat().st_size for path in directory.glob("*.safetensors")}
    try:
        named = (
            set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            if index.is_file()
            else set()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        yield Finding("model.path", str(index), "not a safetensors index", LEGAL)
        return
    missing = sorted(named - shards.keys())
    empty = sorted(name for name, size in shards.items() if size == 0)
    if not shards:
        yield Finding("model.path", str(directory), "no *.safetensors", LEGAL)
    elif missing or empty:
        why = f"shards missing: {', '.join(missing) or 'none'}; empty: {', '.join(empty) or 'none'}"
        yield Finding("model.path", str(directory), why, ("all shards of the index",))


@rule(evidence="ms-swift#8098", needs="checkpoint")
def tokenizer_is_there(subject: Subject) -> Iterator[Finding]:
    """Protects from a checkpoint without tokenizer, or with one that has more tokens than the embedding."""
    directory = Path(subject.config.model.path)
    if kind_of(directory) != "hf":
        return
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        why = f"none of {', '.join(TOKENIZER_FILES)}"
        yield Finding("model.path", str(directory), why, ("copy the tokenizer of the base model",))
        return
    largest = _largest_token(directory / "tokenizer.json")
    if subject.architecture is not None and largest >= subject.architecture.vocab_size:
        why = (
            f"the tokenizer has the token id {largest}, the embedding {subject.architecture.vocab_size} rows"
        )
        yield Finding("model.path", str(directory), why, ("the tokenizer of the base model",))


def _largest_token(path: Path) -> int:
    """Highest id of a tokenizer.json, or -1 where it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ids = [
            *content["model"]["vocab"].values(),
            *(token["id"] for token in content.get("added_tokens", ())),
        ]
        return max(int(number) for number in ids)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return -1


@rule(evidence="ms-swift#5836, ms-swift#8098", level="warn", needs="checkpoint")
def chat_template_is_there(subject: Subject) -> Iterator[Finding]:
    """Protects from an exported model that nobody can chat with: the template comes from the start."""
    directory = Path(subject.config.model.path)
    if kind_of(directory) != "hf" or any((directory / name).is_file() for name in TEMPLATE_FILES):
        return
    try:
        settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = {}
    if not isinstance(settings, dict) or "chat_template" not in settings:
        why = "no chat template; ms-swift trains with its own, and the exported model has none"
        yield Finding("model.path", str(directory), why, ("copy chat_template.jinja of the base model",))
