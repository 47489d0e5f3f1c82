"""What every section of the configuration shares: strictness, and the kind of each key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from types import NoneType
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .secrets import secrets_in

Kind = Literal["convergence", "layout", "execution"]

REQUIRED: Any = ...
INTEGER = re.compile(r"[+-]?\d+")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


class Section(BaseModel):
    """A part of the configuration. Unknown keys are refused, values are never coerced from another type."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def plain_text_of_a_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Read numbers, true/false and null given as text, where text itself is not allowed.

        YAML 1.1 reads 1e-6 (no dot) as text, and Snakemake reads everything inside of
        `--config trainer='{train_steps: 5}'` as text.
        """
        if not isinstance(value, str):
            return value
        annotation = cls.model_fields[info.field_name or ""].annotation
        kinds = (annotation, *get_args(annotation))
        if str in kinds:
            # "" as a path would be the working directory; as a prompt of the system it says what it is
            if not value.strip() and info.field_name != "system":
                legal = "null" if NoneType in kinds else "a text as config/README.md describes it"
                raise conflict("", value, "must not be an empty text", legal)
            return value
        if int in kinds and INTEGER.fullmatch(value):
            return int(value)
        if float in kinds and NUMBER.fullmatch(value):
            return float(value)
        if bool in kinds and value in ("true", "false"):
            return value == "true"
        return None if value == "null" and NoneType in kinds else value

    @field_validator("args", "engine_args", "env", mode="after", check_fields=False)
    @classmethod
    def plain_and_no_secrets(cls, value: dict[str, Any]) -> dict[str, Any]:
        """A configuration is copied into results and logs, and arguments are shown to all users of a node."""
        for name, inner in value.items():
            if not _is_plain(inner):
                legal = "text, a number, true, false, or lists and mappings of them; dates in quotes"
                raise conflict(name, inner, "this value has no form on a command line", legal)
        if found := list(secrets_in(value)):
            why = "it looks like a secret, and a configuration is copied into results and logs"
            raise conflict(", ".join(found), "(not shown)", why, "export it in the shell that runs snakemake")
        return value


BOOLEANS = {
    "yes": True,
    "true": True,
    "t": True,
    "y": True,
    "no": False,
    "false": False,
    "f": False,
    "n": False,
}


def as_read(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as ms-swift reads them from a command line, where 'false' is false and '100' a number.

    What is passed on, and hashed, stays as it was given.
    """
    return {name: _read(value) if isinstance(value, str) else value for name, value in args.items()}


def _read(text: str) -> Any:
    if text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else text


def _is_plain(value: Any) -> bool:
    """Whether JSON has the value; YAML has dates and sets too, and numbers that are none."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return isfinite(value)
    return value is None or isinstance(value, str | int)


def convergence(default: Any = REQUIRED, *, later: bool = False, **constraints: Any) -> Any:
    """Declare a key that changes what is learned: part of the run's identity, a change makes a new run.

    A key that comes `later`, in a release that has predecessors, has a default that does what they did and is
    left out of the identity while it has it: runs that were begun before keep theirs. That default must never
    change.
    """
    extra: Any = {"x-kind": "convergence"} | ({"x-later": True} if later else {})
    return Field(default, json_schema_extra=extra, **constraints)


def layout(default: Any = REQUIRED, **constraints: Any) -> Any:
    """Declare a key that changes how the work is split: stored with checkpoints, not in the identity."""
    return Field(default, json_schema_extra={"x-kind": "layout"}, **constraints)


def execution(default: Any = REQUIRED, **constraints: Any) -> Any:
    """Declare a key that may change at any time and re-runs nothing."""
    return Field(default, json_schema_extra={"x-kind": "execution"}, **constraints)


def section(default: Any = REQUIRED) -> Any:
    """Declare a nested section; its own keys say of which kind they are."""
    if default is REQUIRED or default is None:
        return Field(default)
    return Field(default_factory=default)


def conflict(key: str, value: Any, why: str, legal: str) -> PydanticCustomError:
    """Make the error of a rule about several keys: it names the one whose change repairs it."""
    text = why.replace("{", "{{").replace("}", "}}")
    return PydanticCustomError("conflict", text, {"key": key, "value": value, "legal": legal})


def conflicts(found: list[PydanticCustomError]) -> PydanticCustomError:
    """Make one error of several conflicts: pydantic ends a validator with the first that is raised."""
    return PydanticCustomError(
        "conflicts",
        "keys disagree",
        {"all": [(error.context or {}) | {"why": error.message()} for error in found]},
    )


def keys_of_kind(model: BaseModel, kind: Kind, *, later_defaults: bool = True) -> dict[str, Any]:
    """Return the values of one kind as nested plain dicts, in the shape of the configuration; without
    `later_defaults` no key that was added later and has its default."""
    values: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, Section):
            nested = keys_of_kind(value, kind, later_defaults=later_defaults)
            if nested:
                values[name] = nested
            continue
        extra = field.json_schema_extra
        said = extra if isinstance(extra, dict) else {}
        if said.get("x-kind") == kind and (
            later_defaults or not said.get("x-later") or value != field.default
        ):
            values[name] = value
    return values
