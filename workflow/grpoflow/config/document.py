"""What is generated from the typed configuration: the JSON schema, the key reference, the commented default.

`scripts/make-config-docs` writes them; a test fails when one of them drifts.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from .base import Section
from .root import Config

SCHEMA_ID = "config.schema.json"


# --- keys ---


@dataclass(frozen=True)
class Key:
    """One key of the configuration, or a section where `section` is set."""

    path: str
    field: FieldInfo
    section: type[Section] | None

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def meaning(self) -> str:
        return " ".join((self.field.description or "").split())

    @property
    def kind(self) -> str:
        extra = self.field.json_schema_extra
        return str(extra["x-kind"]) if isinstance(extra, dict) else ""

    @property
    def type(self) -> str:
        return type_text(self.field.annotation)

    @property
    def default(self) -> str:
        """As YAML writes it; "required" without one."""
        return "required" if self.field.is_required() else yaml_text(self.field.get_default())

    @property
    def constraints(self) -> str:
        signs = ((Gt, ">", "gt"), (Ge, ">=", "ge"), (Lt, "<", "lt"), (Le, "<=", "le"))
        found = [
            f"{sign} {getattr(item, name):g}"
            for kind, sign, name in signs
            for item in self.field.metadata
            if isinstance(item, kind)
        ]
        found += [f"at least {item.min_length}" for item in self.field.metadata if isinstance(item, MinLen)]
        return ", ".join(found)


def keys(section: type[Section], path: str = "") -> Iterator[Key]:
    """Every key in order, a section before its keys."""
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        yield Key(f"{path}{name}", field, inner)
        if inner is not None:
            yield from keys(inner, f"{path}{name}.")


def section_of(annotation: Any) -> type[Section] | None:
    """The section among the types that a key may have."""
    candidates = (annotation, *get_args(annotation))
    return next((kind for kind in candidates if isinstance(kind, type) and issubclass(kind, Section)), None)


def type_text(annotation: Any) -> str:
    """A type as people write it: `int`, `a | b`, `list of text`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(yaml_text(choice) for choice in arguments)
    if origin in (Union, UnionType):
        return " | ".join(type_text(kind) for kind in arguments)
    if origin is list:
        return f"list of {type_text(arguments[0])}"
    if origin is dict:
        return "mapping"
    words = {str: "text", int: "int", float: "number", bool: "true | false", NoneType: "null", Any: "any"}
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "mapping"
    return words[annotation]


def yaml_text(value: Any) -> str:
    """A value as YAML writes it on one line."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return repr(value)
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()


# --- JSON schema ---


def json_schema() -> dict[str, Any]:
    """The schema of a configuration file, for editors.

    A file may hold a part of the configuration only, because several are merged: no key is required here.
    That everything is there is checked when they are merged.
    """
    schema = Config.model_json_schema()
    definitions = schema.pop("$defs")
    for section in (schema, *definitions.values()):
        section.pop("required", None)
        section.pop("title", None)
    overlay = {"type": "object", "additionalProperties": False, "properties": dict(schema["properties"])}
    experiments = {
        "description": "Overlays by name: each is laid over the rest of the file and makes one experiment.",
        "type": "object",
        "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$", "not": {"const": "shared"}},
        "additionalProperties": {"anyOf": [overlay, {"type": "null"}]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "grpoflow configuration",
        "description": "A configuration file, or one of several that are merged.",
        **schema,
        "properties": {**schema["properties"], "experiments": experiments},
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as the file holds it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


# --- key reference ---

INTRODUCTION = """\
# Configuration

One YAML file describes an experiment. Without `--configfile`, Snakemake runs `config/config.yaml`, which
holds only the keys that differ from the defaults below. A configuration of one's own replaces it.
Several files are merged in order, later ones win:

    snakemake --profile slurm --configfile config/clusters/a800-8x.yaml \\
        config/recipes/base.yaml config/recipes/9b-full-server-3n.yaml mine.yaml

`grpoflow preflight` and `grpoflow plan` take the same files in the same order.
`config/recipes/README.md` lists the recipes, `config/reference.yaml` shows every key with its default,
`config/CHECKS.md` every check.

`experiments:` makes a sweep: each name has an overlay that is laid over the rest of the file, and its
own `results/NAME/`. Results that do not depend on what differs are made once.

    experiments:
      low-lr: {trainer: {learning_rate: 5.0e-7}}
      no-kl: {trainer: {beta: 0.0}}

Kinds of keys:

- **convergence** keys change what is learned. Their hash is the identity of the run: a changed value makes a
  new run.
- **layout** keys change how the work is split. They are stored with every checkpoint.
- **execution** keys may change at any time and re-run nothing.

Partition, account and wall-time are resources of Slurm: they belong into `profiles/slurm/config.yaml`.
Secrets (WANDB_API_KEY, HF_TOKEN, ...) are read from the environment only.

Anything that has no key goes through `args:` of its section. Names and values are checked against the
arguments of the configured release of ms-swift; an argument that is a key below is refused there.

`workflow/schemas/config.schema.json` tells an editor about keys and values; with the YAML language
server, put this line on top of a file, with the path as seen from it:

    # yaml-language-server: $schema=../workflow/schemas/config.schema.json
"""


def reference() -> str:
    """The key reference (config/README.md)."""
    parts = [INTRODUCTION]
    for top in keys(Config):
        if top.section is None or "." in top.path:
            continue
        optional = " Optional." if NoneType in get_args(top.field.annotation) else ""
        parts.append(f"## {top.path}\n\n{_about(top.section)}{optional}\n")
        parts.append("| key | type | default | kind | meaning |\n|---|---|---|---|---|")
        for key in keys(top.section):
            limits = f" ({key.constraints})" if key.constraints else ""
            kind = key.type.replace(" | ", ", ")
            parts.append(f"| `{key.path}` | {kind}{limits} | `{key.default}` | {key.kind} | {key.meaning} |")
        parts.append("")
    return "\n".join(parts)


def _about(section: type[Section]) -> str:
    """What the section's module says of it, after "Section `name`: "."""
    text = " ".join((sys.modules[section.__module__].__doc__ or "").partition(": ")[2].split())
    return text[:1].upper() + text[1:]


# --- commented default ---

HEAD = """\
# Every key with its default and its meaning, generated from the typed configuration by
# scripts/make-config-docs. Copy what you need: a configuration of your own should hold what differs. What is
# commented out is optional.
"""


def commented_default() -> str:
    """Every key as a YAML file (config/reference.yaml). Required keys are empty."""
    lines = [HEAD.rstrip()]
    optional: tuple[str, ...] = ()
    for key in keys(Config):
        indent = "  " * key.path.count(".")
        mark = "# " if key.path.startswith(optional or "\0") else ""
        if key.section is not None and not key.kind:
            if NoneType in get_args(key.field.annotation):
                optional, mark = (*optional, f"{key.path}."), "# "
            lines += ["", f"{mark}{key.name}: # {_about(key.section)}"]
            continue
        limits = f", {key.constraints}" if key.constraints else ""
        text = f"{key.meaning} [{key.type}{limits}; {key.kind}]"
        comments = textwrap.wrap(text, 110 - len(indent), break_long_words=False, break_on_hyphens=False)
        lines += [f"{mark}{indent}# {line}" for line in comments]
        value = " # required" if key.field.is_required() else f" {key.default}"
        lines.append(f"{mark}{indent}{key.name}:{value}")
        if key.section is not None:
            optional = (*optional, f"{key.path}.")
    return "\n".join(lines) + "\n"
