"""Which arguments every `swift` and `megatron` command of ms-swift accepts, per release.

ms-swift refuses an unknown argument only after torch and the model code were imported on every rank
(`ValueError: remaining_argv`, ms-swift 4.6.0 swift/pipelines/base.py:35-40). Here the same question is
answered from data files, in milliseconds, without ms-swift: `scripts/make-arg-catalogue` writes them from the
released wheels.

A release without a catalogue of its own is checked against the nearest older one; names that one does not
know are then only warned about, because a later release may have added them. A release older than every
catalogue is refused: nothing is known about it.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from grpoflow.facts.versions import parse_release

FACTS = Path(__file__).parent

TRUE_WORDS = ("yes", "true", "t", "y", "1")  # transformers 5.19.0 hf_argparser.py:36-44
FALSE_WORDS = ("no", "false", "f", "n", "0")
# Such a word is a value, not an option (argparse._negative_number_matcher; an exponent needs Python 3.14).
NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


class CatalogueError(ValueError):
    """There is no argument catalogue for the version, or no such command in it."""


@dataclass(frozen=True)
class Argument:
    """One argument of one command, as HfArgumentParser would define it.

    type: "int", "float", "bool", "str", "json" (a name or the text of a JSON object) or "unsettable" (no text
    can be parsed to its type hint). nargs: None (one value), "?" (none or one) or "+" (one or more).
    default: the literal default, or "<computed>". transformers: releases that have the argument, if not all
    of the examined ones have it. at: file:line of its definition in the wheel.
    """

    name: str
    type: str
    nargs: str | None
    choices: tuple[object, ...]
    default: object
    optional: bool
    transformers: tuple[str, ...]
    at: str

    @property
    def has_no_form(self) -> bool:
        """Whether `--no_NAME`, without a value, sets it to false (hf_argparser.py:244-252)."""
        return self.type == "bool" and self.default is True


@dataclass(frozen=True)
class Rename:
    """An argument of ms-swift 3.x that 4.x no longer has. new is None where nothing took its place."""

    old: str
    new: str | None
    commands: tuple[str, ...]
    note: str
    evidence: str

    def concerns(self, command: str) -> bool:
        """``command`` ("megatron rlhf") is listed itself or through its program ("megatron")."""
        return command in self.commands or command.partition(" ")[0] in self.commands


@dataclass(frozen=True)
class ArgProblem:
    """One thing wrong with one argument. An "error" makes ms-swift refuse or misread the command line."""

    severity: Literal["error", "warning"]
    kind: Literal["unknown", "renamed", "choice", "type", "count", "release", "unchecked"]
    command: str
    argument: str
    message: str
    legal: tuple[str, ...] = ()
    evidence: str = ""


@dataclass(frozen=True)
class Catalogue:
    """The arguments of one ms-swift release. ``warning`` says if an older release stands in for it."""

    version: str
    source_version: str
    warning: str
    transformers: str
    transformers_examined: tuple[str, ...]
    unresolved: Mapping[str, tuple[str, ...]]
    _commands: Mapping[str, Mapping[str, Argument]]

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(self._commands)

    def arguments(self, command: str) -> Mapping[str, Argument]:
        """Arguments of a command such as "megatron rlhf", by name.

        Raises CatalogueError for a command that is not catalogued.
        """
        if command not in self._commands:
            raise CatalogueError(f"{command!r} is not catalogued; one of {', '.join(self._commands)}")
        return self._commands[command]

    def check(self, command: str, args: Mapping[str, object]) -> list[ArgProblem]:
        """Check name → value as read from a YAML file (scalars, lists, mappings); all problems at once."""
        known = self.arguments(command)
        problems: list[ArgProblem] = []
        for name, value in args.items():
            argument = known.get(name)
            if argument is None:
                problems.append(self._unknown(command, name))
                continue
            if value is None:
                text = f"{name}: null would reach ms-swift as the text 'None'; leave the key out"
                problems.append(ArgProblem("error", "type", command, name, text, evidence=argument.at))
                continue
            if isinstance(value, list | tuple) and argument.nargs != "+":
                text = f"{name}: takes one {_type_word(argument)}, not the list {list(value)!r}"
                problems.append(ArgProblem("error", "count", command, name, text, evidence=argument.at))
                continue
            problems += self._check_words(command, argument, argument_words(value), given=repr(value))
        return problems

    def check_argv(self, command: str, argv: Sequence[str]) -> list[ArgProblem]:
        """Check the words that follow `swift rlhf`, `megatron sft`, ...; all problems at once.

        A first word that ends in .yaml, .yml or .json is a file of arguments (swift/cli/main.py:36-68): it is
        not opened, and a warning says so. Abbreviated names, which argparse would accept, are refused: what
        they mean changes when a release adds an argument.
        """
        known = self.arguments(command)
        options = {f"--{spelling}": name for name in known for spelling in (name, name.replace("_", "-"))}
        problems: list[ArgProblem] = []
        words = list(argv)
        if words and words[0].endswith((".yaml", ".yml", ".json")):
            text = f"{words[0]}: the arguments in this file are not checked"
            problems.append(ArgProblem("warning", "unchecked", command, words.pop(0), text))
        for option, values in _group_options(words):
            if option is None:
                text = f"{values[0]!r} belongs to no argument"
                problems.append(ArgProblem("error", "count", command, values[0], text))
                continue
            name = options.get(option)
            if name is not None:
                problems += self._check_words(command, known[name], values, given=" ".join(values))
                continue
            positive = options.get(f"--{option[5:]}") if option.startswith(("--no_", "--no-")) else None
            if positive is None or not known[positive].has_no_form:
                problems.append(self._unknown(command, option.lstrip("-").replace("-", "_")))
            elif values:
                text = f"{option} takes no value, got {' '.join(values)!r}; write --{positive} false"
                problems.append(
                    ArgProblem("error", "count", command, positive, text, evidence=known[positive].at)
                )
        return problems

    def _unknown(self, command: str, name: str) -> ArgProblem:
        known = self.arguments(command)
        for rename in renamed_arguments():
            if rename.old == name and rename.concerns(command):
                now = f"is now {rename.new}" if rename.new else "was removed"
                text = f"{name}: this argument of ms-swift 3.x {now}. {rename.note}".rstrip()
                legal = (rename.new,) if rename.new is not None and rename.new in known else ()
                return ArgProblem("error", "renamed", command, name, text, legal, rename.evidence)
        text = f"{name}: `{command}` of ms-swift {self.source_version} has no such argument"
        near: tuple[str, ...] = ()
        elsewhere = [other for other, arguments in self._commands.items() if name in arguments]
        if elsewhere:  # not a typing error: a similar name would be a wrong guess
            text += f"; it belongs to {', '.join(elsewhere)}"
        elif near := tuple(difflib.get_close_matches(name, known, n=3, cutoff=0.6)):
            text += f"; did you mean {' or '.join(near)}?"
        doubts = [self.warning, *(f"not followed: {base}" for base in self.unresolved[command])]
        if doubt := "; ".join(filter(None, doubts)):
            return ArgProblem("warning", "unknown", command, name, f"{text} [{doubt}]", near)
        return ArgProblem("error", "unknown", command, name, text, near)

    def _check_words(
        self, command: str, argument: Argument, words: Sequence[str], given: str
    ) -> Iterator[ArgProblem]:
        """The values of one argument, as argparse would see them."""

        def problem(
            kind: Literal["choice", "type", "count"], why: str, legal: Iterable[str] = ()
        ) -> ArgProblem:
            text = f"{argument.name}: {why}"
            return ArgProblem("error", kind, command, argument.name, text, tuple(legal), argument.at)

        if argument.transformers:
            releases = ", ".join(argument.transformers)
            text = (
                f"{argument.name}: comes from transformers; of the releases looked at "
                f"({', '.join(self.transformers_examined)}) only {releases} have it"
            )
            yield ArgProblem("warning", "release", command, argument.name, text, (), argument.at)
        if argument.type == "unsettable":
            yield problem("type", "ms-swift cannot read it from a command line; leave it out")
        elif not words and argument.nargs != "?":
            yield problem("count", f"needs a value ({_type_word(argument)})")
        elif len(words) > 1 and argument.nargs != "+":
            yield problem("count", f"takes one {_type_word(argument)}, got {len(words)}: {given}")
        elif argument.choices:
            legal = [str(choice) for choice in argument.choices]
            if any(word not in legal for word in words):
                yield problem("choice", f"{given} is not one of {', '.join(legal)}", legal)
        elif any(not _parses(argument.type, word) for word in words):
            yield problem("type", f"{given} is not {_type_word(argument)}")


def load_catalogue(version: str) -> Catalogue:
    """The catalogue of an ms-swift release, or of the nearest older one (see the module's docstring).

    Raises CatalogueError for one older than every catalogue, VersionError for text like "latest".
    """
    wanted = parse_release(version)
    available = catalogued_versions()
    older = [known for known in available if parse_release(known) <= wanted]
    if not older:
        raise CatalogueError(
            f"ms-swift {version}: its arguments are not catalogued, and no older release is "
            f"(catalogued: {', '.join(available)})"
        )
    warning = "" if older[-1] == version else f"ms-swift {version} was checked against {older[-1]}"
    return _read_catalogue(version, older[-1], warning)


def catalogued_versions() -> tuple[str, ...]:
    """Releases of ms-swift that have a catalogue, oldest first."""
    names = (path.stem.removeprefix("ms_swift-") for path in (FACTS / "args").glob("ms_swift-*.json"))
    return tuple(sorted(names, key=parse_release))


@lru_cache(maxsize=4)
def _read_catalogue(version: str, source_version: str, warning: str) -> Catalogue:
    data = json.loads((FACTS / "args" / f"ms_swift-{source_version}.json").read_text(encoding="utf-8"))
    commands: dict[str, dict[str, Argument]] = {command: {} for command in data["commands"]}
    for entry in data["arguments"]:
        argument = _argument(entry)
        for command in entry["commands"]:
            commands[command][argument.name] = argument
    return Catalogue(
        version=version,
        source_version=source_version,
        warning=warning,
        transformers=data["transformers"]["newest"],
        transformers_examined=tuple(data["transformers"]["examined"]),
        unresolved={command: tuple(facts["unresolved"]) for command, facts in data["commands"].items()},
        _commands=commands,
    )


def _argument(entry: Mapping[str, Any]) -> Argument:
    return Argument(
        name=entry["name"],
        type=entry["type"],
        nargs=entry.get("nargs"),
        choices=tuple(entry.get("choices", ())),
        default=entry.get("default"),
        optional=entry.get("optional", False),
        transformers=tuple(entry.get("transformers", ())),
        at=entry["at"],
    )


@lru_cache(maxsize=1)
def renamed_arguments() -> tuple[Rename, ...]:
    """Arguments of ms-swift 3.12.6 that 4.0.4 or later does not have, with what took their place."""
    rows = json.loads((FACTS / "renamed_args.json").read_text(encoding="utf-8"))["renamed"]
    return tuple(Rename(**{**row, "commands": tuple(row["commands"])}) for row in rows)


def argument_words(value: object) -> list[str]:
    """A configured value as command line words: true/false, JSON for a mapping, one word per list item.

    Raises TypeError for None: there is no word for it (the argument is left out instead).
    """
    if value is None:
        raise TypeError("None has no form on a command line")
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, Mapping):
        return [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, list | tuple):
        return [word for item in value for word in argument_words(item)]
    return [str(value)]


def _group_options(words: Sequence[str]) -> Iterator[tuple[str | None, list[str]]]:
    """(option, its values) as argparse splits a line; option is None for words before the first one."""
    option: str | None = None
    values: list[str] = []
    for word in words:
        if word.startswith("-") and len(word) > 1 and not NEGATIVE_NUMBER.fullmatch(word) and " " not in word:
            if option is not None or values:
                yield option, values
            option, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if option is not None or values:
        yield option, values


def _parses(kind: str, word: str) -> bool:
    """Whether the argparse type function of ``kind`` accepts the word."""
    if kind == "bool":
        return word.lower() in (*TRUE_WORDS, *FALSE_WORDS)
    if kind == "json" and not word.lstrip().startswith("{"):
        return True  # a name (zero3), or the path of a JSON file
    readers: dict[str, Callable[[str], object]] = {"int": int, "float": float, "json": json.loads}
    try:
        readers.get(kind, str)(word)
    except ValueError:
        return False
    return True


def _type_word(argument: Argument) -> str:
    words = {"bool": "true/false", "float": "number", "json": "JSON object or name", "str": "text"}
    return words.get(argument.type, argument.type)
