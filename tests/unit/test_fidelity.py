"""Planted faults of a conversion or an export are found by what the files say of themselves."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpoflow.checkpoints import CheckpointError
from grpoflow.fidelity import MTP, TIED, account, account_adapter, chat_template, check_files
from safetensors.numpy import load_file, save_file

TENSORS = {
    "model.embed_tokens.weight": (16, 4),
    "model.layers.0.mlp.experts.gate_up_proj": (4, 8, 4),
    "model.visual.patch_embed.weight": (4, 3),
    "mtp.fc.weight": (4, 8),
    "lm_head.weight": (16, 4),
}
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    "added_tokens": [{"id": 3, "content": "<|im_end|>", "special": True}],
    "normalizer": {"type": "NFC"},
}


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


@pytest.fixture
def start(tmp_path: Path) -> Path:
    directory = tmp_path / "start"
    directory.mkdir()
    rng = np.random.default_rng(0)
    shards = {
        "model-00001-of-00002.safetensors": list(TENSORS)[:2],
        "model-00002-of-00002.safetensors": list(TENSORS)[2:],
    }
    for shard, names in shards.items():
        save_file({n: rng.random(TENSORS[n], dtype=np.float32) for n in names}, directory / shard)
    index = {name: shard for shard, names in shards.items() for name in names}
    write(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    text = {"hidden_size": 4, "num_hidden_layers": 1, "tie_word_embeddings": False}
    write(directory / "config.json", {"model_type": "qwen3_5", "text_config": text, "dtype": "float32"})
    write(directory / "tokenizer.json", TOKENIZER)
    write(directory / "tokenizer_config.json", {"eos_token": "<|im_end|>", "model_max_length": 100})
    write(directory / "generation_config.json", {"eos_token_id": [3, 0], "temperature": 1.0})
    (directory / "chat_template.jinja").write_text("{{ messages }}\n")
    return directory


@pytest.fixture
def export(start: Path) -> Path:
    """A faithful copy: of one shard, with files that a newer transformers writes differently."""
    directory = start.with_name("export")
    directory.mkdir()
    weights = {
        name: array for shard in start.glob("*.safetensors") for name, array in load_file(shard).items()
    }
    save_file(weights, directory / "model.safetensors")
    for path in start.glob("*.j*"):
        if "safetensors" not in path.name:
            shutil.copy(path, directory)
    change_json(
        directory / "config.json", lambda c: c | {"transformers_version": "5.19.0", "use_cache": False}
    )
    change_json(
        directory / "tokenizer.json",
        lambda t: {**t, "model": {**t["model"], "merges": ["a b"]}, "padding": None},
    )
    change_json(directory / "generation_config.json", lambda g: {**g, "eos_token_id": [0, 3]})
    return directory


def change_json(path: Path, change: Callable[[Any], Any]) -> None:
    write(path, change(json.loads(path.read_text())))


def change_weights(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")


def test_a_faithful_export_passes(start: Path, export: Path) -> None:
    found = account(export, start, "float32")
    assert (found.same, found.converted, found.absent) == (len(TENSORS), {}, {})
    assert check_files(export, start) == []


def drop(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda weights: weights.pop(name)


def cast(name: str, dtype: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda weights: weights.update({name: weights[name].astype(dtype)})


WEIGHT_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "one tensor dropped": (
        drop("model.visual.patch_embed.weight"),
        "missing: model.visual.patch_embed.weight",
    ),
    "MTP missing": (drop("mtp.fc.weight"), "missing: mtp.fc.weight .*save_missing_weights"),
    "output layer missing": (drop("lm_head.weight"), "missing: lm_head.weight"),
    "tensor added": (lambda w: w.update({"lora_A.weight": w["lm_head.weight"]}), "added: lora_A.weight"),
    "type changed": (cast("lm_head.weight", np.float16), "lm_head.weight: type F16, not F32"),
    "shape changed": (
        lambda w: w.update({"mtp.fc.weight": w["mtp.fc.weight"].T.copy()}),
        r"shape \(8, 4\), not \(4, 8\)",
    ),
}


@pytest.mark.parametrize("fault", WEIGHT_FAULTS)
def test_faults_of_weights(start: Path, export: Path, fault: str) -> None:
    change, message = WEIGHT_FAULTS[fault]
    change_weights(export, change)
    with pytest.raises(CheckpointError, match=message):
        account(export, start, "float32")


def test_a_truncated_shard(start: Path, export: Path) -> None:
    shard = export / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        account(export, start, "float32")


def test_a_missing_shard(start: Path) -> None:
    broken = start.with_name("broken")
    shutil.copytree(start, broken)
    (broken / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"shards that are missing: model-00002-of-00002\.safetensors"):
        account(broken, start, "float32")


def test_absences_are_explained(start: Path, export: Path) -> None:
    change_weights(export, drop("mtp.fc.weight"))
    assert account(export, start, "float32", may_lack_mtp=True).absent == {MTP: ["mtp.fc.weight"]}


def test_a_tied_output_layer_may_be_absent(start: Path, export: Path) -> None:
    change_weights(export, drop("lm_head.weight"))
    change_json(
        start / "config.json",
        lambda c: {**c, "text_config": {**c["text_config"], "tie_word_embeddings": True}},
    )
    assert account(export, start, "float32").absent == {TIED: ["lm_head.weight"]}


@pytest.mark.parametrize("equal", [True, False])
def test_an_output_layer_that_was_tied_is_the_embedding(start: Path, export: Path, equal: bool) -> None:
    """mcore-bridge may write one of uninitialised memory."""
    for directory in (start, export):
        change_json(directory / "config.json", lambda c: {**c, "tie_word_embeddings": True})
    for shard in start.glob("*.safetensors"):
        weights = load_file(shard)
        weights.pop("lm_head.weight", None)
        save_file(weights, shard)

    def tie(weights: dict[str, Any]) -> None:
        (embedding,) = (array for name, array in weights.items() if name.endswith("embed_tokens.weight"))
        weights["lm_head.weight"] = embedding.copy()
        weights["lm_head.weight"][0, 0] += 0 if equal else 1

    change_weights(export, tie)
    if equal:
        assert account(export, start, "float32").same == len(TENSORS) - 1
    else:
        with pytest.raises(CheckpointError, match=r"lm_head\.weight, which is not the embedding"):
            account(export, start, "float32")


def test_the_configured_type_is_counted(start: Path, export: Path) -> None:
    change_weights(export, lambda w: w.update({name: array.astype(np.float16) for name, array in w.items()}))
    assert account(export, start, "float16").converted == {"F32 -> F16": len(TENSORS)}
    with pytest.raises(CheckpointError, match="5 differences"):
        account(export, start, "bfloat16")


def new_vocabulary(tokenizer: dict[str, Any]) -> Any:
    return {**tokenizer, "model": {**tokenizer["model"], "vocab": {"a": 1, "b": 0, "ab": 2}}}


FILE_FAULTS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "tokenizer of another model": ("tokenizer.json", new_vocabulary, "that of another model"),
    "special tokens": (
        "tokenizer.json",
        lambda t: {**t, "added_tokens": []},
        r"other added tokens: <\|im_end\|>",
    ),
    "normaliser": ("tokenizer.json", lambda t: {**t, "normalizer": None}, "another normalizer"),
    "end of an answer": (
        "generation_config.json",
        lambda g: {**g, "eos_token_id": 0},
        r"eos_token_id is 0, not \[3, 0\]",
    ),
    "end token": ("tokenizer_config.json", lambda t: {**t, "eos_token": "b"}, "eos_token"),
    "another architecture": (
        "config.json",
        lambda c: {**c, "text_config": {**c["text_config"], "num_hidden_layers": 2}},
        "text_config.num_hidden_layers is 2, not 1",
    ),
}


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_faults_of_files(start: Path, export: Path, fault: str) -> None:
    name, change, message = FILE_FAULTS[fault]
    change_json(export / name, change)
    with pytest.raises(CheckpointError, match=message):
        check_files(export, start)


def test_a_chat_template_that_differs_or_is_gone(start: Path, export: Path) -> None:
    (export / "chat_template.jinja").write_text("{{ other }}")
    with pytest.raises(CheckpointError, match="the chat template differs"):
        check_files(export, start)
    (export / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is missing"):
        check_files(export, start)


def test_a_missing_generation_config(start: Path, export: Path) -> None:
    """Without it nothing says which tokens end an answer: every completion runs to its limit."""
    (export / "generation_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"generation_config\.json is missing"):
        check_files(export, start)


def test_harmless_changes_are_noted(start: Path, export: Path) -> None:
    change_json(start / "config.json", lambda c: {**c, "use_cache": True})
    assert check_files(export, start) == ["config.json: use_cache is false, not true"]


def test_chat_template_in_older_places(tmp_path: Path) -> None:
    write(tmp_path / "tokenizer_config.json", {"chat_template": "{{ a }}"})
    assert chat_template(tmp_path) == "{{ a }}"
    write(tmp_path / "chat_template.json", {"chat_template": "{{ b }}"})
    assert chat_template(tmp_path) == "{{ b }}"


# --- adapters ---

ADAPTED = "base_model.model.model.embed_tokens"
HALVES = {f"{ADAPTED}.lora_A.weight": (2, 4), f"{ADAPTED}.lora_B.weight": (16, 2)}


def adapter(parent: Path, shapes: dict[str, tuple[int, ...]], **settings: Any) -> Path:
    directory = parent / "adapter"
    directory.mkdir()
    save_file({name: np.ones(s, dtype=np.float32) for name, s in shapes.items()}, directory / "a.safetensors")
    write(directory / "adapter_config.json", {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **settings})
    return directory


def test_an_adapter_that_fits(start: Path, tmp_path: Path) -> None:
    made = adapter(tmp_path, HALVES)
    assert account_adapter(made, start, 2, 4) == {"modules": 1, "rank": 2, "alpha": 4}


@pytest.mark.parametrize(
    ("shapes", "settings", "message"),
    [
        ({f"{ADAPTED}.lora_A.weight": (2, 4)}, {}, "embed_tokens: shapes"),
        ({**HALVES, f"{ADAPTED}.lora_B.weight": (8, 2)}, {}, "embed_tokens: shapes"),
        (
            {name.replace("embed_tokens", "layers.9.mlp"): shape for name, shape in HALVES.items()},
            {},
            "layers.9.mlp: the model has no such module",
        ),
        ({**HALVES, "model.norm.weight": (4,)}, {}, "model.norm.weight is not part of a LoRA adapter"),
        (HALVES, {"lora_alpha": 8}, "lora_alpha is 8, not 4"),
        (HALVES, {"r": 4}, "r is 4, not 2"),
    ],
)
def test_an_adapter_that_does_not_fit(
    start: Path, tmp_path: Path, shapes: dict[str, tuple[int, ...]], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        account_adapter(adapter(tmp_path, shapes, **settings), start, 2, 4)
