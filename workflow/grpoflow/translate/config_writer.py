"""The configuration as it is being written: values by their dotted path, comments, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError, create_model

from grpoflow.config import Config
from grpoflow.preflight.modelled import WORKFLOW, modelled_key

from .ledger import Ledger, plain
from .programs import VERSION, Program, Source, catalogue
from .report import Note, Outcome, one_line
from .versions import version_note

PLACEHOLDER = "CHANGE-ME"
# what a program does if an argument is not given, where the catalogue cannot say it
DEFAULTS: dict[str, Any] = {
    "truncation_strategy": "left",
    "beta": 0.04,
    "loss_type": "grpo",
    "enable_thinking": False,
}


class ConfigWriter:
    """Collects values by their dotted path, and the notes of every command that they come from."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.trainer = source.first("swift rlhf", "megatron rlhf")
        self.server = source.first("swift rollout")
        self.sft = source.first("swift sft", "megatron sft")
        self.values: dict[str, Any] = {}
        self.comments: dict[str, str] = {}
        self.ledgers = {
            name: Ledger(program)
            for name, program in (("trainer", self.trainer), ("rollout", self.server), ("sft", self.sft))
            if program is not None
        }
        self.extra: list[Note] = []

    @property
    def main(self) -> Program:
        """The command that the configuration is mainly about."""
        program = self.trainer or self.sft
        if program is None:
            raise AssertionError("nothing to translate")
        return program

    def set(self, path: str, value: Any) -> str:
        """Write a value; returns it as a note shows it."""
        self.values[path] = value
        return f"{path}: {plain(value)}"

    def note(self, parameter: str, outcome: Outcome, target: str, why: str, line: int | None = None) -> None:
        self.extra.append(Note("", parameter, "", line, outcome, target, why))

    def decide(self, path: str, value: Any, why: str) -> None:
        """Write a placeholder for something that the configuration needs and the script does not have."""
        self.comments[path] = why
        self.note(path, "needs a decision", self.set(path, value), why)

    def settle(
        self, ledger: Ledger, name: str, value: Any, path: str, doubt: str, otherwise: Outcome = "renamed"
    ) -> None:
        """Write a value and its note; a doubt about it makes it a decision, and stands in the file too."""
        if name in ledger.pending:
            if doubt:
                self.comments[path] = doubt
            ledger.settle(name, "needs a decision" if doubt else otherwise, self.set(path, value), doubt)

    def carry(self, ledger: Ledger, name: str, path: str, why: str = "") -> None:
        """Write the value of an argument to a path; what is not legal there goes through `args`."""
        value = ledger.program.value(name)
        if name in ledger.pending and value is not None:
            value = _fitting(path, value)
            if is_choice(path, value) and (problem := problem_of(path, value)):
                ledger.settle(name, "needs a decision", path, f"left out, {problem}")
                return
            if not is_choice(path, value):
                choices = ", ".join(map(str, get_args(_field(path).annotation)))
                why = f"the configuration knows {choices}"
                ledger.settle(name, "needs a decision", path, why)
                return
            outcome: Outcome = "carried over" if path.endswith(f".{name}") else "renamed"
            ledger.settle(name, outcome, self.set(path, value), why)
        ledger.settle(name, "needs a decision", path)

    def pass_on(self, ledger: Ledger, name: str, section: str, value: Any, why: str = "") -> None:
        """Write an argument that no key stands for to the `args` of a section."""
        key = modelled_key(name, section)
        if key:
            why = f"refused in {section}.args" + ("" if key == WORKFLOW else f", since {key} stands for it")
            ledger.settle(name, "needs a decision", "" if key == WORKFLOW else key, why)
        else:
            ledger.settle(name, "carried over", self.set(f"{section}.args.{name}", value), why)

    def drop(self, ledger: Ledger, why: str, *names_: str) -> None:
        for name in names_:
            ledger.settle(name, "dropped", "", why)

    def defaults(self, ledger: Ledger, paths: Mapping[str, str]) -> None:
        """Write out defaults of the program that would change what is learned if they became ours."""
        own = catalogue().arguments(ledger.program.name)
        for name, path in paths.items():
            if name in ledger.program.given or name not in own or path in self.values:
                continue
            value = _fitting(path, DEFAULTS.get(name, own[name].default))
            field = _field(path)
            extra = field.json_schema_extra
            kind = extra.get("x-kind") if isinstance(extra, dict) else None
            if value in (None, "<computed>", []) or kind != "convergence" or field.is_required():
                continue
            if value != field.default:
                why = f"the default of `{ledger.program.name}`; ours is {plain(field.default)}"
                if name == "truncation_strategy":
                    why += ", since left can cut off image placeholders, and then the trainer stops"
                ledger.missing(f"--{name}", "default", self.set(path, value), why)

    def notes(self) -> Iterator[Note]:
        """All notes: on the script, then command by command in the order of its lines."""
        yield version_note(self.source, self.main)
        yield from self.extra
        for ledger in self.ledgers.values():
            yield from sorted(ledger.notes, key=lambda note: note.line or 0)

    def text(self) -> str:
        """The YAML text, in the order of the configuration's own sections."""
        lines = [f"# Translated from a script for ms-swift, for release {VERSION}."]
        for section, field in Config.model_fields.items():
            model = _section(field.annotation)
            keys = {path.split(".")[1]: path for path in self.values if path.startswith(f"{section}.")}
            if not keys:
                continue
            lines += ["", f"{section}:"]
            for key in sorted(model.model_fields, key=lambda key: key == "args"):
                if key in keys:
                    lines += self._key(f"{section}.{key}", "  ")
        return "\n".join(lines) + "\n"

    def _key(self, path: str, indent: str) -> Iterator[str]:
        if path in self.comments:
            yield f"{indent}# needs a decision: {one_line(self.comments[path])}"
        key = _yaml(path.rpartition(".")[2])
        if path in self.values:
            yield f"{indent}{key}: {_yaml(self.values[path])}"
            return
        yield f"{indent}{key}:"
        for nested in [nested for nested in self.values if nested.startswith(f"{path}.")]:
            yield from self._key(nested, f"{indent}  ")


def _field(path: str) -> Any:
    section, _, key = path.partition(".")
    return _section(Config.model_fields[section].annotation).model_fields[key]


def _section(annotation: Any) -> type[BaseModel]:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    raise TypeError(annotation)


def is_choice(path: str, value: Any) -> bool:
    """Whether a value is among the literal choices of a key; True where there are none."""
    choices = [choice for choice in get_args(_field(path).annotation) if isinstance(choice, str)]
    return not choices or value in choices


def problem_of(path: str, value: Any) -> str:
    """Why the configuration refuses a value for a key; "" if it does not."""
    field = _field(path)
    try:
        create_model("Key", value=(field.annotation, field))(value=value)
    except ValidationError as error:
        return f"since the configuration refuses {plain(value)}: {error.errors()[0]['msg']}"
    return ""


def _fitting(path: str, value: Any) -> Any:
    """A value of ms-swift in the type of our key: 32.0 as 32, a list of one as its item."""
    annotation = _field(path).annotation
    if annotation is int and isinstance(value, float) and value == int(value):
        return int(value)
    if (
        isinstance(value, list)
        and len(value) == 1
        and not str(annotation).startswith("list")
        and "list[" not in str(annotation)
    ):
        return value[0]
    return value


class _Dumper(yaml.SafeDumper):
    """Every string on one line: one of several lines would have to be indented."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"')


_Dumper.add_representer(str, _string)


def _yaml(value: Any) -> str:
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")
