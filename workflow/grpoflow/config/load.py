"""Reading a configuration: every problem at once, each with its key, value, reason and a legal value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from .root import Config

EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
DEFAULT_EXPERIMENT = "main"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the configuration."""

    experiment: str
    key: str
    value: Any
    why: str
    legal: str | None = None

    def __str__(self) -> str:
        legal = f"; legal: {self.legal}" if self.legal else ""
        return f"[{self.experiment}] {self.key} = {self.value!r}: {self.why}{legal}"


class ConfigError(ValueError):
    """The configuration is refused. `problems` holds everything that is wrong."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        super().__init__("\n".join(["configuration refused:", *(f"  {p}" for p in problems)]))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a configuration file.

    Raises:
        ConfigError: the file is not a YAML mapping.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError([Problem("-", str(path), "", f"not valid YAML: {error}")]) from error
    if not isinstance(raw, dict):
        raise ConfigError([Problem("-", str(path), raw, "a configuration is a mapping of sections")])
    return raw


def load_experiments(raw: Mapping[str, Any]) -> dict[str, Config]:
    """Validate the configuration and every overlay in `experiments`.

    Returns:
        The typed configuration of each experiment; one named `main` where there is no `experiments`.

    Raises:
        ConfigError: with the problems of all experiments at once.
    """
    base = {key: value for key, value in raw.items() if key != "experiments"}
    overlays = raw.get("experiments") or {DEFAULT_EXPERIMENT: {}}
    if not isinstance(overlays, Mapping):
        raise ConfigError(
            [
                Problem(
                    "-", "experiments", overlays, "a mapping of names to overlays", "{low-lr: {trainer: {}}}"
                )
            ]
        )
    configs: dict[str, Config] = {}
    problems: list[Problem] = []
    for name, overlay in overlays.items():
        if not EXPERIMENT_NAME.fullmatch(str(name)):
            why = "an experiment's name becomes a directory: letters, digits, - and _ only"
            problems.append(Problem(str(name), "experiments", name, why, "low-lr"))
            continue
        try:
            configs[str(name)] = Config.model_validate(merge(base, overlay or {}))
        except ValidationError as error:
            problems += _problems(str(name), error)
    if problems:
        raise ConfigError(problems)
    return configs


def merge(base: Any, overlay: Any) -> Any:
    """Lay one nested mapping over another; anything that is not a mapping replaces."""
    if isinstance(base, Mapping) and isinstance(overlay, Mapping):
        return {key: merge(base.get(key), overlay[key]) if key in overlay else base[key] for key in base} | {
            key: value for key, value in overlay.items() if key not in base
        }
    return overlay


def _problems(experiment: str, error: ValidationError) -> list[Problem]:
    problems = []
    for item in error.errors(include_url=False):
        location = [str(part) for part in item["loc"]]
        value, why, legal = item.get("input"), item["msg"].removeprefix("Value error, "), None
        if item["type"] == "extra_forbidden":
            known = _legal_keys(location[:-1])
            near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
            why = "no such key" + (f", did you mean {near[0]!r}?" if near else "")
            legal = ", ".join(known)
        elif item["type"] == "missing":
            value, why = None, "this key is required"
        elif item["type"] == "literal_error":
            legal = item["ctx"]["expected"]
            why = "not one of the legal values"
        elif isinstance(value, Mapping):
            value = "{...}"
        problems.append(Problem(experiment, ".".join(location) or "config", value, why, legal))
    return problems


def _legal_keys(location: list[str]) -> list[str]:
    model: type[BaseModel] = Config
    for part in location:
        field = model.model_fields.get(part)
        if field is None:
            break
        candidates = [field.annotation, *get_args(field.annotation)]
        nested = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if nested:
            model = nested[0]
    return list(model.model_fields)
