"""What is generated from the typed configuration is up to date, and true."""

import re
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from configurations import config
from grpoflow.config import load_experiments, read_yaml
from grpoflow.config.document import commented_default, json_schema, keys
from grpoflow.config.load import merge
from grpoflow.config.root import Config

ROOT = Path(__file__).parents[2]
GENERATED = runpy.run_path(str(ROOT / "scripts/make-config-docs"))["GENERATED"]


@pytest.mark.parametrize("path", GENERATED)
def test_generated_file_is_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == GENERATED[path](), "run scripts/make-config-docs"


def test_commented_default_is_the_default() -> None:
    """With the required keys filled in, it says nothing but the defaults."""
    stated = _without_empty(yaml.safe_load(commented_default()))
    required = config()
    explicit = load_experiments(merge(stated, required))["main"]
    assert explicit == load_experiments(required)["main"]
    text = commented_default()
    assert [key.path for key in keys(Config) if f"{key.name}:" not in text] == []


def _without_empty(raw: Any) -> Any:
    """Without the keys that are null: required ones, and optional ones whose default null is."""
    if not isinstance(raw, dict):
        return raw
    return {name: _without_empty(value) for name, value in raw.items() if value is not None}


def validate(raw: Any) -> list[str]:
    found = jsonschema.Draft202012Validator(json_schema()).iter_errors(raw)
    return [error.json_path for error in found]


def test_schema_accepts_what_the_configuration_accepts() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    for raw in (read_yaml(ROOT / "config/config.yaml"), config(), {"trainer": {"beta": 0.0}}):
        assert validate(raw) == []
    assert validate(config({"experiments": {"a": {"trainer": {"seed": 1}}, "b": None}})) == []


@pytest.mark.parametrize(
    ("overlay", "path"),
    [
        ({"trainer": {"bata": 1}}, "$.trainer"),
        ({"trainer": {"backend": "x"}}, "$.trainer.backend"),
        ({"trainer": {"save_steps": 0}}, "$.trainer.save_steps"),
        ({"nonsense": 1}, "$"),
        ({"experiments": {"shared": {}}}, "$.experiments"),
        ({"experiments": {"a": {"trainer": {"bata": 1}}}}, "$.experiments.a"),
    ],
)
def test_schema_refuses_what_the_configuration_refuses(overlay: dict[str, Any], path: str) -> None:
    assert validate(config(overlay)) == [path]


def test_every_configuration_that_a_page_names_is_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "config").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"config/[\w./-]+\.yaml", page.read_text())}
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
