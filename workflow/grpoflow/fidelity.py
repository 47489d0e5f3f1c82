"""Whether a Hugging Face directory is what it must be, given the one that it was made from.

Names, shapes and types of tensors, tokenizer, chat template, configuration. Values are compared by
`grpoflow.training_env.compare_tensors`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpoflow.checkpoints import CheckpointError, Tensor, same_values, tensors

MTP = "multi-token prediction is not built by this trainer"
TIED = "tied to the embedding"

SAFETENSORS_TYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
TOKENIZER_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
ADAPTER_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
TOKEN_KEYS = ("eos_token_id", "pad_token_id", "bos_token_id")

# what programs write anew each time, and what changes no result
UNIMPORTANT = {
    *("transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache", "architectures"),
    *("is_local", "local_files_only", "processor_class", "tokenizer_class", "_commit_hash", "backend"),
}
SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)


@dataclass(frozen=True)
class Accounting:
    """What became of every tensor of the reference."""

    same: int
    """Tensors with the same name, shape and type."""
    converted: dict[str, int]
    """Type before -> after, and how many, such as {"BF16 -> F32": 12}."""
    absent: dict[str, list[str]]
    """Reason -> names of the tensors that are not there."""


def account(ours: Path, reference: Path, torch_dtype: str, *, may_lack_mtp: bool = False) -> Accounting:
    """Account for every tensor.

    Args:
        torch_dtype: The type that weights may have besides that of the reference, e.g. `bfloat16`.
        may_lack_mtp: Whether the program that wrote `ours` leaves multi-token prediction out.

    Raises:
        CheckpointError: a shard is torn; a tensor is missing without a reason, was added, or has another
        shape or
            type. The message names each.
    """
    found, expected = tensors(ours), tensors(reference)
    tied = bool(_deep(_read(reference / "config.json"), "tie_word_embeddings"))
    absent: dict[str, list[str]] = {}
    problems: list[str] = []
    for name in sorted(expected.keys() - found.keys()):
        reason = _why_absent(name, tied, may_lack_mtp)
        if reason:
            absent.setdefault(reason, []).append(name)
        else:
            problems.append(f"missing: {name}{_hint(name)}")
    added = sorted(found.keys() - expected.keys())
    problems += [f"added: {name}" for name in added if not (tied and _head(name))]
    problems += _untied(ours, added if tied else [], found)
    converted: dict[str, int] = {}
    for name in sorted(found.keys() & expected.keys()):
        a, b = found[name], expected[name]
        if a.shape != b.shape:
            problems.append(f"{name}: shape {a.shape}, not {b.shape}")
        elif a.dtype != b.dtype:
            if a.dtype != SAFETENSORS_TYPES[torch_dtype]:
                problems.append(f"{name}: type {a.dtype}, not {b.dtype} or {SAFETENSORS_TYPES[torch_dtype]}")
            change = f"{b.dtype} -> {a.dtype}"
            converted[change] = converted.get(change, 0) + 1
    if problems:
        raise CheckpointError(_listed(f"{ours} is not {reference} with other values", problems))
    return Accounting(len(found.keys() & expected.keys()) - sum(converted.values()), converted, absent)


def _why_absent(name: str, tied: bool, may_lack_mtp: bool) -> str:
    if is_mtp(name) and may_lack_mtp:
        return MTP
    return TIED if tied and _head(name) else ""


def is_mtp(name: str) -> bool:
    """Whether a tensor belongs to multi-token prediction (transformers ignores `^mtp.*` of Qwen3.5)."""
    return name.startswith("mtp.") or ".mtp." in name


def _head(name: str) -> bool:
    return name.endswith("lm_head.weight")


def _untied(directory: Path, added: list[str], found: Mapping[str, Tensor]) -> Iterator[str]:
    """Output layers that the reference ties to the embedding, and that are something else: where the outer
    and the inner tie_word_embeddings differ, mcore-bridge 1.6.5 writes one that nobody initialised."""
    for head in filter(_head, added):
        embedding = next((name for name in sorted(found) if name.endswith("embed_tokens.weight")), None)
        if embedding is None or not same_values(directory, head, embedding):
            yield (
                f"added: {head}, which is not the embedding, though tie_word_embeddings is true: set it "
                "alike in config.json and its text_config"
            )


def _hint(name: str) -> str:
    return (
        " (trainer.args.save_missing_weights copies it from the start, ms-swift#9504)" if is_mtp(name) else ""
    )


def account_adapter(ours: Path, reference: Path, rank: int, alpha: int) -> dict[str, int]:
    """Check that a LoRA adapter fits the model that it was trained on: every tensor has its place there, both
    halves of each are there in the right shape, and rank and scale are those of the training.

    Raises:
        CheckpointError: not so; the message names each tensor.
    """
    settings = _read(ours / "adapter_config.json")
    wanted = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha}
    problems = [
        f"adapter_config.json: {key} is {settings.get(key)}, not {value}"
        for key, value in wanted.items()
        if settings.get(key) != value
    ]
    found, base = tensors(ours), tensors(reference)
    halves: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in found.items():
        match = ADAPTER_TENSOR.fullmatch(name)
        if match is None:
            problems.append(f"{name} is not part of a LoRA adapter")
        else:
            halves.setdefault(match["module"], {})[match["half"]] = tensor.shape
    for module, shapes in sorted(halves.items()):
        weight = base.get(f"{module}.weight")
        if weight is None:
            problems.append(f"{module}: the model has no such module")
        elif shapes != {"A": (rank, weight.shape[1]), "B": (weight.shape[0], rank)}:
            problems.append(f"{module}: shapes {shapes} do not fit {weight.shape} at rank {rank}")
    if problems or not halves:
        raise CheckpointError(_listed(f"{ours} is no adapter of {reference}", problems or ["it is empty"]))
    return {"modules": len(halves), "rank": rank, "alpha": alpha}


def _listed(title: str, problems: list[str]) -> str:
    shown = "\n".join(f"  {problem}" for problem in problems[:20])
    more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
    return f"{title}: {len(problems)} differences\n{shown}{more}"


def check_files(ours: Path, reference: Path) -> list[str]:
    """Compare tokenizer, chat template and configuration; return what differs without harm.

    Raises:
        CheckpointError: a file is missing, or says something else; the message names each difference.
    """
    problems = [
        f"{path.name} is missing"
        for path in sorted(reference.iterdir())
        if path.name in (*SETTINGS, "tokenizer.json", "chat_template.jinja")
        and not (ours / path.name).is_file()
    ]
    problems += _tokenizer(ours / "tokenizer.json", reference / "tokenizer.json")
    if chat_template(ours) != chat_template(reference):
        problems.append("the chat template differs")
    notes: list[str] = []
    for name in SETTINGS:
        if (ours / name).is_file() and (reference / name).is_file():
            changes = list(changed(_read(ours / name), _read(reference / name)))
            important = [text for key, text in changes if key.rpartition(".")[2] not in UNIMPORTANT]
            problems += [f"{name}: {text}" for text in important]
            notes += [f"{name}: {text}" for _, text in changes if text not in important]
    if problems:
        raise CheckpointError(_listed(f"files of {ours} and {reference}", problems))
    return notes


def _tokenizer(ours: Path, reference: Path) -> Iterator[str]:
    """Differences of two tokenizer.json that give other tokens; formatting and padding are none."""
    if not (ours.is_file() and reference.is_file()):
        return
    a, b = _read(ours), _read(reference)
    vocabulary, expected = a["model"].get("vocab") or {}, b["model"].get("vocab") or {}
    if vocabulary != expected:
        yield f"tokenizer.json: {len(vocabulary)} tokens, not these {len(expected)}: that of another model"
    elif _merges(a) != _merges(b):
        yield "tokenizer.json: other merges: that of another model"
    added = [{(token["id"], token["content"]) for token in side.get("added_tokens", ())} for side in (a, b)]
    if added[0] != added[1]:
        tokens = ", ".join(content for _, content in sorted(added[0] ^ added[1])[:5])
        yield f"tokenizer.json: other added tokens: {tokens}"
    yield from (f"tokenizer.json: another {part}" for part in TOKENIZER_PARTS if a.get(part) != b.get(part))


def _merges(tokenizer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Merges as pairs: older files hold "a b", newer ones ["a", "b"]."""
    merges = tokenizer["model"].get("merges") or []
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in merges]


def chat_template(directory: Path) -> str:
    """The chat template of a directory, wherever it is; "" if there is none."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8").strip()
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (directory / name).is_file() and (found := _read(directory / name).get("chat_template")):
            return str(found).strip()
    return ""


def changed(
    ours: Mapping[str, Any], reference: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, str]]:
    """Dotted key and description of every value of `reference` that `ours` has and has otherwise. Keys that
    only one of them has are defaults that one version of a library writes and another does not."""
    for key in sorted(ours.keys() & reference.keys()):
        a, b, name = ours[key], reference[key], f"{path}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from changed(a, b, f"{name}.")
        elif a != b and not (key in TOKEN_KEYS and _as_set(a) == _as_set(b)):
            yield name, f"{name} is {_short(a)}, not {_short(b)}"


def _as_set(value: Any) -> set[Any]:
    return set(value) if isinstance(value, list) else {value}


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}


def _deep(config: Mapping[str, Any], key: str) -> Any:
    """A key of config.json, or of its text_config."""
    found = config.get(key)
    return found if found is not None else (config.get("text_config") or {}).get(key)
