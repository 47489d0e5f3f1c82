"""What the export says of itself: the adapter alone, and who loaded it."""

import json
from pathlib import Path
from typing import Any

import pytest
from configurations import config as raw_config
from grpoflow.config import ConfigError, load_experiments
from grpoflow.files import fingerprint
from grpoflow.stages.base import StageFailed
from grpoflow.stages.export import loaded_by
from grpoflow.stages.models import assemble_adapter


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint as both trainers leave it."""
    directory = tmp_path / "checkpoint-2"
    directory.mkdir()
    (directory / "adapter_config.json").write_text('{"r": 2, "base_model_name_or_path": null}')
    (directory / "adapter_model.safetensors").write_bytes(b"weights")
    (directory / "args.json").write_text("{}")
    return directory


def test_an_adapter_has_its_own_directory_and_names_its_base(checkpoint: Path, tmp_path: Path) -> None:
    assemble_adapter(checkpoint, Path("start"), tmp_path / "model")
    names = [path.name for path in sorted((tmp_path / "model").iterdir())]
    assert names == ["adapter_config.json", "adapter_model.safetensors"]
    settings = json.loads((tmp_path / "model/adapter_config.json").read_text())
    assert settings == {"r": 2, "base_model_name_or_path": str(Path("start").absolute())}
    assert json.loads((checkpoint / "adapter_config.json").read_text())["base_model_name_or_path"] is None


def test_a_checkpoint_without_adapter_is_named(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "adapter_model.safetensors").unlink()
    with pytest.raises(StageFailed, match=r"checkpoint-2 has no adapter_model\.safetensors; export\.lora"):
        assemble_adapter(checkpoint, Path("start"), tmp_path / "model")


def test_vllm_is_said_to_load_only_what_it_loaded(checkpoint: Path, tmp_path: Path) -> None:
    evaluation: dict[str, Any] = {"engine": "vllm", "fingerprint": fingerprint(checkpoint)}
    assert loaded_by(checkpoint, evaluation, adapter=False) == ["transformers", "vllm"]
    assert loaded_by(checkpoint, {**evaluation, "engine": "transformers"}, adapter=False) == ["transformers"]
    assert loaded_by(checkpoint, {}, adapter=False) == ["transformers"], "an evaluation of an earlier release"
    assemble_adapter(checkpoint, Path("start"), tmp_path / "model")
    assert loaded_by(tmp_path / "model", evaluation, adapter=True) == ["peft"]
    (checkpoint / "adapter_model.safetensors").write_bytes(b"others")
    assert loaded_by(checkpoint, evaluation, adapter=False) == ["transformers"]


def test_an_adapter_needs_lora() -> None:
    with pytest.raises(ConfigError, match=r"export\.lora.*trainer\.tuner is full"):
        load_experiments(raw_config({"export": {"lora": "adapter"}}))
    load_experiments(raw_config({"export": {"lora": "adapter"}, "trainer": {"tuner": "lora"}}))
