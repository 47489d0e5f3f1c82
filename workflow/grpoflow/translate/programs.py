"""The ms-swift commands of a script, with their arguments as ms-swift reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpoflow.config.cluster import ClusterConfig
from grpoflow.facts.arguments import (
    FALSE_WORDS,
    NEGATIVE_NUMBER,
    TRUE_WORDS,
    Argument,
    Catalogue,
    Rename,
    load_catalogue,
    renamed_arguments,
)

from . import slurm
from .hide import HIDDEN, hide_secrets, is_secret
from .launcher import WRAPPERS, environment_of
from .scan import Unread, Word
from .shell import Command, Script, read_script

VERSION: str = ClusterConfig.model_fields["ms_swift"].default
TRAINERS = ("swift rlhf", "megatron rlhf", "swift sft", "megatron sft")
PROGRAMS = (*TRAINERS, "swift rollout")
ELSEWHERE = {
    "swift export": "stage convert_to_mcore, cache_dataset or export_hf",
    "megatron export": "stage convert_to_mcore or export_hf",
    "swift infer": "stage evaluate",
    "swift eval": "stage evaluate",
    "swift deploy": "no stage of the pipeline",
    "swift merge-lora": "stage export_hf",
    "swift pt": "no stage of the pipeline",
    "megatron pt": "no stage of the pipeline",
    "swift sample": "no stage of the pipeline",
}
MODULE = re.compile(r"(?:.*/)?swift[/.]cli[/.](_megatron[/.])?(\w+?)(?:\.py)?")
SEARCHED = re.compile(r"[$`]\(?(?:which|command -v|type -[pP])\s+(\w+)[)`]")


@dataclass(frozen=True)
class Given:
    """One argument of a command.

    name: its name in the current release; written: as the script has it. value: typed as ms-swift would, or
    the text where it refers to something that only a running shell knows. remark: what has to be said about
    it in any translation. problem: why ms-swift would refuse it.
    """

    name: str
    written: str
    line: int
    value: Any
    words: tuple[Word, ...]
    remark: str = ""
    problem: str = ""

    @property
    def text(self) -> str:
        """The value as the script has it after expansion."""
        return " ".join(word.text for word in self.words)

    @property
    def unresolved(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for word in self.words for source in word.unresolved))

    @property
    def secret(self) -> bool:
        """Whether the value was taken out of the script."""
        return HIDDEN in self.text

    @property
    def usable(self) -> bool:
        """Whether `value` is what the program would see."""
        return not self.unresolved and not self.problem


@dataclass(frozen=True)
class Removed:
    """An argument that nothing in the current release corresponds to."""

    written: str
    line: int
    text: str
    why: str


@dataclass(frozen=True)
class Program:
    """A `swift` or `megatron` command that can be translated. file: where more of its arguments are."""

    name: str
    given: Mapping[str, Given]
    removed: tuple[Removed, ...]
    env: Mapping[str, Word]
    first: int
    last: int
    commented: bool = False
    condition: str = ""
    file: Word | None = None

    @property
    def backend(self) -> str:
        return self.name.partition(" ")[0]

    def value(self, name: str, default: Any = None) -> Any:
        """The value of an argument, or the default where it is absent or not known."""
        given = self.given.get(name)
        return given.value if given is not None and given.usable else default


@dataclass(frozen=True)
class Source:
    """A script, as far as the translation needs it. ms_swift: the release that it names, if it does."""

    script: Script
    programs: tuple[Program, ...]
    unread: tuple[Unread, ...]
    ms_swift: str | None

    def unclosed(self) -> tuple[str, ...]:
        """Where bash would refuse the script."""
        return tuple(f"line {item.first}: {item.text}: {item.why}" for item in self.script.unclosed)

    def first(self, *names: str) -> Program | None:
        """The first command of one of these names; one that is commented out only if there is no other."""
        found = sorted((p for p in self.programs if p.name in names), key=lambda p: p.commented)
        return found[0] if found else None


def catalogue() -> Catalogue:
    """The arguments of the ms-swift release that translations are made for."""
    return load_catalogue(VERSION)


def read_source(text: str) -> Source:
    """Read a script. Secrets are taken out before anything else looks at it."""
    text = hide_secrets(text)
    script = read_script(text)
    programs: list[Program] = []
    unread = list(script.unread)
    for command in script.commands:
        found = _find(command)
        if found is None:
            shown = " ".join(word.text for word in command.words)
            if shown.startswith(("echo ", "printf ")):  # perhaps the key, for a login that it is piped to
                shown = f"{command.words[0].text} ..."
            unread.append(Unread(command.first, command.last, shown, _why_not(command.words)))
            continue
        if found[1]:
            launcher = " ".join(word.text for word in found[1])
            unread.append(
                Unread(command.first, command.first, launcher, "the launcher; its command is read without it")
            )
        programs.append(_program(command, found, unread, script.header))
    for command in script.commented:
        found = _find(command)
        if found is not None and found[2] and found[2][0].text.startswith("--"):  # else it is prose
            programs.append(replace(_program(command, found, unread, script.header), commented=True))
    version = re.search(r"\bms[-_]swift(?:\[\w+\])?\s*==\s*([\d.]+\d)", text)
    return Source(
        script,
        tuple(sorted(programs, key=lambda program: program.first)),
        tuple(sorted(dict.fromkeys(unread), key=lambda item: (item.first, item.last))),
        version[1] if version else None,
    )


_Found = tuple[str, tuple[Word, ...], tuple[Word, ...]]


def _find(command: Command) -> _Found | None:
    """(name, words before it, words after it) of the ms-swift command that these words start."""
    words = command.words
    if not words or (_base(words[0]) not in (*WRAPPERS, "swift", "megatron")):
        return None
    for index, word in enumerate(words):
        if _base(word) in ("swift", "megatron") and index + 1 < len(words):
            name = f"{_base(word)} {words[index + 1].text.replace('_', '-')}"
            if name in PROGRAMS:
                return name, words[:index], words[index + 2 :]
        if found := MODULE.fullmatch(word.text):
            name = f"{'megatron' if found[1] else 'swift'} {found[2]}"
            if name in PROGRAMS:
                return name, words[:index], words[index + 1 :]
    return None


def _base(word: Word) -> str:
    """The name of a program, wherever it is."""
    searched = SEARCHED.fullmatch(word.text)
    return searched[1] if searched else word.text.rpartition("/")[2]


def _why_not(words: Sequence[Word]) -> str:
    name = " ".join([_base(words[0]), *(word.text.replace("_", "-") for word in words[1:2])])
    if name in ELSEWHERE:
        return f"not translated: {ELSEWHERE[name]} does this"
    if words[0].text == "tee":
        return "a copy of the output: not part of the translation"
    if words[0].text in ("source", "."):
        return "not opened: variables that it sets are unknown here"
    return "not a training command"


def _program(
    command: Command, found: _Found, unread: list[Unread], header: Mapping[str, slurm.Option]
) -> Program:
    name, launcher, words = found
    step = dict(command.step)
    if any(_base(word) == "srun" for word in launcher):
        step = slurm.step_of(step or header, launcher)
    env = dict(command.env) | environment_of(launcher, command.env, step)
    given, removed = _arguments(name, words, unread)
    return Program(
        name,
        given,
        tuple(removed),
        env,
        command.first,
        command.last,
        condition=command.condition,
        file=_file(words),
    )


def missing_file(command: str, file: Word) -> str:
    """What has to be done about the file of arguments of a command, as a problem of its translation."""
    return (
        f"line {file.line}: the arguments in {file.text} are missing, since no file is opened: write them "
        f"behind `{command}` as options"
    )


def _file(words: Sequence[Word]) -> Word | None:
    """The file of arguments: the first word, or, which ms-swift does not know, behind `--config`."""
    for before, word in zip([None, *words], words, strict=False):
        if word.text.startswith("--config="):
            return replace(word, text=word.text.partition("=")[2])
        if (before is None or before.text == "--config") and word.text.endswith((".yaml", ".yml", ".json")):
            return word
    return None


def _arguments(
    name: str, words: Sequence[Word], unread: list[Unread]
) -> tuple[dict[str, Given], list[Removed]]:
    known = catalogue().arguments(name)
    given: dict[str, Given] = {}
    removed: list[Removed] = []

    def skip(words: Sequence[Word], why: str) -> None:
        text = " ".join(word.text for word in words)
        unread.append(Unread(words[0].line, words[-1].line, text, why))

    def add(item: Given) -> None:
        if before := given.pop(item.name, None):
            why = f"given again as --{item.written} in line {item.line}, and the last one counts"
            removed.append(Removed(before.written, before.line, before.text, why))
        given[item.name] = item

    if words and words[0].text.endswith((".yaml", ".yml", ".json")):
        skip(words[:1], "a file of arguments; it is not opened")
        words = words[1:]
    for option, values in _options(words):
        if option is None:
            skip(values, "belongs to no argument")
            continue
        written = option.text.lstrip("-").replace("-", "_")
        full = [] if written in known or _rename(name, written) else _abbreviated(known, written)
        argument = known.get(full[0] if len(full) == 1 else written)
        if argument is not None:
            add(_given(argument, written, option.line, _without_open_end(argument, values, skip)))
        elif written.startswith("no_") and (positive := known.get(written[3:])) and positive.has_no_form:
            add(Given(positive.name, written, option.line, False, tuple(values)))
        elif rename := _rename(name, written):
            text = " ".join(word.text for word in values)
            if rename.new is None or rename.new not in known:
                why = f"an argument of ms-swift 3.x that was removed. {rename.note}".rstrip()
                removed.append(Removed(written, option.line, text, why))
            else:
                item = _renamed(rename, known[rename.new], option, values)
                if item.name in given and item.remark:
                    removed.append(Removed(written, option.line, text, f"--{item.name} is given too"))
                else:
                    add(item)
        elif len(full) > 1:
            why = f"ambiguous, which ms-swift refuses: {', '.join(full)}"
            skip([option, *_without_secret(written, values)], why)
        else:
            problem = catalogue().check(name, {written: ""})[0]
            skip([option, *_without_secret(written, values)], problem.message)
    return given, removed


def _abbreviated(known: Mapping[str, Argument], written: str) -> list[str]:
    """The arguments that argparse takes this for the beginning of."""
    return [
        name for name, argument in known.items() if name.startswith(written) and argument.type != "unsettable"
    ]


def _options(words: Sequence[Word]) -> Iterator[tuple[Word | None, list[Word]]]:
    """(option, its values) as argparse splits a line; option is None for words before the first one."""
    option: Word | None = None
    values: list[Word] = []
    for word in words:
        text = word.text
        if text.startswith("-") and len(text) > 1 and not NEGATIVE_NUMBER.fullmatch(text) and " " not in text:
            if option is not None or values:
                yield option, values
            name, equals, value = text.partition("=")
            option = replace(word, text=name)
            values = [replace(word, text=value)] if equals else []
        else:
            values.append(word)
    if option is not None or values:
        yield option, values


def _without_open_end(argument: Argument, values: list[Word], skip: Any) -> list[Word]:
    """Set aside "$@" and the like behind a complete argument: more arguments may come from there."""
    complete = 0 if argument.type == "bool" and argument.nargs == "?" else 1
    while (
        len(values) > complete
        and values[-1].unresolved == (values[-1].text,)
        and (argument.nargs != "+" or values[-1].text in ("$@", "$*"))
    ):
        skip([values.pop()], "more arguments may come from here; the script does not say which")
    return values


def _rename(command: str, written: str) -> Rename | None:
    for rename in renamed_arguments():
        if rename.old == written and rename.concerns(command):
            return rename
    return None


def _renamed(rename: Rename, argument: Argument, option: Word, values: Sequence[Word]) -> Given:
    """An argument under its new name. Where the meaning changed with the name, the value is changed too."""
    remark = f"The 3.x name of --{rename.new}. {rename.note}".rstrip()
    item = _given(argument, rename.old, option.line, values)
    text = values[0].text if values else "true"
    if "turned round" in rename.note:
        positive = _given(
            replace(argument, type="bool"), rename.old, option.line, values or [Word("true", option.line)]
        )
        return (
            replace(positive, value=not positive.value, remark=remark)
            if positive.usable
            else replace(positive, remark=remark)
        )
    if rename.old == "distributed_timeout_minutes" and text.isdigit():
        return replace(item, value=int(text) * 60, remark=remark)
    if rename.old == "use_flash_attn":
        return replace(
            item, value="flash" if text.lower() in TRUE_WORDS else "unfused", problem="", remark=remark
        )
    if rename.old in (
        "num_layers_per_virtual_pipeline_stage",
        "save_retain_interval",
        "ckpt_dir",
        "mcore_adapters",
    ):
        return replace(item, problem=f"the new argument means something else: {rename.note}", remark=remark)
    return replace(item, remark=remark)


def _without_secret(name: str, values: Sequence[Word]) -> tuple[Word, ...]:
    """The value of an argument; that of a secret only where it is a reference to a variable."""
    if not is_secret(name):
        return tuple(values)
    return tuple(word if word.unresolved else replace(word, text=HIDDEN) for word in values)


def _given(argument: Argument, written: str, line: int, values: Sequence[Word]) -> Given:
    words = _without_secret(argument.name, values)
    assumed = dict.fromkeys(source for word in words for source in word.assumed)
    remark = f"The default in {', '.join(assumed)}: the script does not set it." if assumed else ""
    item = Given(argument.name, written, line, " ".join(word.text for word in words), words, remark)
    if item.secret:
        item = replace(item, problem="has a secret in it, which was not read")
    if item.unresolved or item.secret:
        return item
    try:
        texts = [word.text for word in words]
        if argument.type == "bool" and not texts and argument.nargs == "?":
            return replace(item, value=True)
        if not texts or (argument.nargs != "+" and len(texts) > 1):
            return replace(item, problem=f"takes {'at least ' if argument.nargs == '+' else ''}one value")
        typed = [_typed(argument, text) for text in texts]
    except ValueError:
        return replace(item, problem=f"is not {argument.type}")
    legal = [str(choice) for choice in argument.choices]
    if legal and any(text not in legal for text in texts):
        return replace(item, problem=f"is not one of {', '.join(legal)}")
    return replace(item, value=typed if argument.nargs == "+" else typed[0])


def _typed(argument: Argument, text: str) -> Any:
    if argument.type == "bool":
        if text.lower() in TRUE_WORDS:
            return True
        if text.lower() in FALSE_WORDS:
            return False
        raise ValueError(text)
    if argument.type == "json" and text.lstrip().startswith("{"):
        return json.loads(text)
    return {"int": int, "float": float}.get(argument.type, str)(text)
