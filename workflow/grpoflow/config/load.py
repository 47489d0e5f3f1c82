"""Reading a configuration: every problem at once, each with its key, value, reason and a legal value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .repeated import faults_of_yaml
from .root import Config
from .secrets import names_a_secret

EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
RESERVED_NAMES = {"shared": "results/shared holds what experiments have in common"}
DEFAULT_EXPERIMENT = "main"

UNION_MEMBERS = ("literal[", "list[", "dict[")
OTHER_NAMES = {
    "lr": ("learning_rate",),
    "tp": ("tensor_parallel_size", "parallel.tensor"),
    "tensor_parallel_size": ("parallel.tensor",),
    "tensor_model_parallel_size": ("parallel.tensor",),
    "pp": ("parallel.pipeline",),
    "pipeline_model_parallel_size": ("parallel.pipeline",),
    "cp": ("parallel.context",),
    "context_parallel_size": ("parallel.context",),
    "ep": ("parallel.expert",),
    "expert_model_parallel_size": ("parallel.expert",),
    "etp": ("parallel.expert_tensor",),
    "batch_size": ("global_batch_size",),
    "gradient_accumulation_steps": ("global_batch_size",),
    "per_device_train_batch_size": ("micro_batch_size",),
    "max_steps": ("train_steps",),
    "train_iters": ("train_steps",),
    "num_train_epochs": ("epochs",),
    "lr_scheduler_type": ("lr_schedule",),
    "lr_decay_style": ("lr_schedule",),
    "tuner_type": ("tuner",),
    "train_type": ("tuner",),
    "dataset": ("train",),
    "val_dataset": ("val",),
    "reward_funcs": ("functions",),
    "reward_weights": ("weights",),
    "external_plugins": ("plugin",),
    "max_new_tokens": ("max_completion_length",),
    "vllm_gpu_memory_utilization": ("gpu_memory_utilization",),
    "vllm_tensor_parallel_size": ("tensor_parallel_size",),
}
"""Keys under the names that ms-swift, vLLM and people give them; the first that the section has is meant."""

TYPE_WORDS = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of keys",
    "invalid_key": "text: the name of a key",
}

Fault = Literal["configuration_file", "experiment_name", "unknown_key", "required_key", "legal_value"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the configuration."""

    id: Fault
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
        ConfigError: the file is not a YAML mapping, or gives a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        faults = list(faults_of_yaml(text))
        raw = None if faults else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that there is not
        raise ConfigError(
            [Problem("configuration_file", "-", str(path), "", f"not valid YAML: {error}")]
        ) from error
    if faults:
        raise ConfigError(
            [Problem("configuration_file", "-", key, str(path), why, "give it once") for key, why in faults]
        )
    if not isinstance(raw, dict):
        why = "a configuration is a mapping of sections"
        raise ConfigError([Problem("configuration_file", "-", str(path), raw, why)])
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
        why, legal = "a mapping of names to overlays", "{low-lr: {trainer: {learning_rate: 1.0e-7}}}"
        raise ConfigError([Problem("legal_value", "-", "experiments", overlays, why, legal)])
    configs: dict[str, Config] = {}
    problems: list[Problem] = []
    for name, overlay in overlays.items():
        found = _check_overlay(str(name), overlay)
        if found:
            problems.append(found)
            continue
        try:
            configs[str(name)] = Config.model_validate(merge(base, overlay or {}))
        except ValidationError as error:
            problems += _problems(str(name), error)
    if problems:
        raise ConfigError(problems)
    return configs


def _check_overlay(name: str, overlay: Any) -> Problem | None:
    if not EXPERIMENT_NAME.fullmatch(name):
        why = "an experiment's name becomes a directory: letters, digits, - and _ only"
        return Problem("experiment_name", name, "experiments", name, why, "low-lr")
    if name in RESERVED_NAMES:
        why = f"the name is taken: {RESERVED_NAMES[name]}"
        return Problem("experiment_name", name, "experiments", name, why, f"{name}-run")
    if overlay is not None and not isinstance(overlay, Mapping):
        why = "an overlay is a mapping of sections"
        return Problem("legal_value", name, f"experiments.{name}", overlay, why, "{trainer: {seed: 1}}")
    return None


def merge(base: Any, overlay: Any) -> Any:
    """Lay one nested mapping over another; anything that is not a mapping replaces."""
    if isinstance(base, Mapping) and isinstance(overlay, Mapping):
        return {key: merge(base.get(key), overlay[key]) if key in overlay else base[key] for key in base} | {
            key: value for key, value in overlay.items() if key not in base
        }
    return overlay


def _problems(experiment: str, error: ValidationError) -> list[Problem]:
    """Translate pydantic's errors; those of one key are one problem (a union reports one per member)."""
    by_key: dict[str, list[ErrorDetails]] = {}
    for item in error.errors(include_url=False):
        by_key.setdefault(_key(item["loc"]), []).append(item)
    keys = list(by_key)
    return [
        problem
        for key, items in by_key.items()
        # of a mapping that may also be a word, only what is wrong inside it
        if not any(other.startswith(f"{key}.") and key for other in keys)
        for problem in (_conflicts(experiment, items) or [_problem(experiment, key, items)])
    ]


def _conflicts(experiment: str, items: list[ErrorDetails]) -> list[Problem]:
    """Those between sections, of which one error of pydantic holds several."""
    found = [one for item in items if item["type"] == "conflicts" for one in item["ctx"]["all"]]
    return [
        Problem("legal_value", experiment, one["key"], one["value"], one["why"], one["legal"])
        for one in found
    ]


def _key(location: tuple[int | str, ...]) -> str:
    """The key in the configuration: without the names that pydantic gives to the members of a union."""
    model: type[BaseModel] | None = Config
    parts: list[str] = []
    for part in location:
        if model is not None and part not in model.model_fields and part == model.__name__:
            continue
        if isinstance(part, str) and (part.startswith(UNION_MEMBERS) or part in ("int", "str")) and parts:
            continue
        if part == "[key]":  # the name itself is wrong, not its value
            continue
        parts.append(str(part))
        model = _nested(model, str(part)) if model else None
    return ".".join(parts)


def _problem(experiment: str, key: str, items: list[ErrorDetails]) -> Problem:
    item = items[0]
    value, kind = item.get("input"), item["type"]
    if kind == "extra_forbidden":
        section, _, name = key.rpartition(".")
        known = _legal_keys(section)
        meant = [key for key in OTHER_NAMES.get(name, ()) if key.partition(".")[0] in known]
        near = meant[:1] or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        why = "no such key" + (f", did you mean {near[0]!r}?" if near else "")
        if names_a_secret(name):
            value = "(not shown)"
        return Problem("unknown_key", experiment, key, value, why, ", ".join(near or known))
    if kind == "missing":
        return Problem(
            "required_key", experiment, key, None, f"this key is required. {_meaning(key)}".strip()
        )
    if kind == "conflict":
        found = item["ctx"]
        inner = ".".join(filter(None, (key, found["key"])))
        return Problem("legal_value", experiment, inner, found["value"], item["msg"], found["legal"])
    if any(map(names_a_secret, key.split("."))):
        value = "(not shown)"
    elif isinstance(value, Mapping):
        value = "{...}"
    why = " or ".join(dict.fromkeys(_why(i) for i in items))
    return Problem("legal_value", experiment, key, value, why, _legal_values(items))


def _why(item: ErrorDetails) -> str:
    if item["type"] == "too_short":
        return f"must name at least {item['ctx']['min_length']}"
    if item["type"] in TYPE_WORDS:
        return f"must be {TYPE_WORDS[item['type']]}"
    return item["msg"].removeprefix("Value error, ").replace("Input should", "must")


def _legal_values(items: list[ErrorDetails]) -> str | None:
    legal = []
    for item in items:
        context = item.get("ctx", {})
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "min_length": "at least", "expected": ""}
        legal += [f"{sign} {context[name]}".strip() for name, sign in signs.items() if name in context]
        legal += [word for kind, word in TYPE_WORDS.items() if item["type"] == kind]
    return " or ".join(legal) or None


def _meaning(key: str) -> str:
    model: type[BaseModel] | None = Config
    *sections, name = key.split(".")
    for part in sections:
        model = _nested(model, part) if model else None
    field = model.model_fields.get(name) if model else None
    return (field.description or "").replace("\n", " ") if field else ""


def _legal_keys(section: str) -> list[str]:
    model: type[BaseModel] = Config
    for part in filter(None, section.split(".")):
        model = _nested(model, part) or model
    return list(model.model_fields)


def _nested(model: type[BaseModel], part: str) -> type[BaseModel] | None:
    """The section that a key of a section holds, or None for a plain value."""
    field = model.model_fields.get(part)
    candidates = [field.annotation, *get_args(field.annotation)] if field else []
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
