"""Carrying the arguments of one command over to another."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from grpoflow.facts.arguments import argument_words
from grpoflow.facts.gates import gated_arguments

from . import modules
from .hide import HIDDEN
from .ledger import SECRET, Ledger, variable_without_effect
from .programs import VERSION, Given, Program, catalogue
from .report import Outcome
from .scan import FILES, Word


class Translator:
    """Carries every argument over; the subclasses know what the other backend reads differently."""

    handlers: ClassVar[Mapping[str, str]] = {}
    renamed: ClassVar[Mapping[str, str]] = {}
    no_effect: ClassVar[Mapping[str, str]] = {}

    def __init__(self, program: Program, target: str) -> None:
        self.program = program
        self.target = target
        self.known = catalogue().arguments(target)
        self.own = catalogue().arguments(program.name)
        self.ledger = Ledger(program)
        self.arguments: dict[str, str] = {}

    def translate(self) -> str:
        """The command as bash text; the notes are in the ledger."""
        lines = self._environment()
        while self.ledger.pending:
            name = next(iter(self.ledger.pending))
            handler = self.handlers.get(name)
            if handler:
                getattr(self, handler)()
            self.ordinary(name)
        self.complete()
        lines.append(self.target)
        lines += [f"    --{name} {words}".rstrip() for name, words in self.arguments.items()]
        return " \\\n".join(lines)

    def unclear(self, name: str) -> bool:
        """Whether an argument is given, and its value not known or not legal: then it decides nothing."""
        given = self.program.given.get(name)
        return given is not None and not given.usable

    def complete(self) -> None:
        """Write out what must not be left to a different default."""

    def _environment(self) -> list[str]:
        lines = []
        for name, word in self.program.env.items():
            why = variable_without_effect(name, word.text)
            if why:
                self.ledger.variable(name, word, "dropped", "", why)
                continue
            lines.append(f"{name}={_shell(word)}")
            self.ledger.variable(name, word, "carried over", name, "")
        return lines

    def ordinary(self, name: str) -> None:
        """Carry an argument over under the same name, if the target has it and does the same with it."""
        given = self.ledger.pending.get(name)
        if given is None:
            return
        new = self.renamed.get(name, name)
        if given.secret:
            self._secret(given, new)
        elif name in self.no_effect:
            self.ledger.settle(name, "dropped", "", self.no_effect[name])
        elif new in self.known:
            self._same_name(given, new)
        elif given.usable and given.value == self.own[name].default:
            self.ledger.settle(name, "dropped", "", f"the default of `{self.program.name}`: nothing is lost")
        else:
            why = f"`{self.target}` has no such argument, and nothing takes its place"
            self.ledger.settle(name, "needs a decision", "", why)

    def _secret(self, given: Given, new: str) -> None:
        """Write a reference to the environment in place of a secret; without the variable bash stops."""
        if new not in self.known:
            self.ledger.settle(given.name, "dropped", "", SECRET)
            return
        reference = f'"${{{new.upper()}:?}}"'
        self.arguments[new] = " ".join(
            reference if HIDDEN in word.text else _shell(word) for word in given.words
        )
        why = f"a secret: export {new.upper()} in the shell that starts the command; it was not read"
        self.ledger.settle(given.name, "needs a decision", f"--{new} {self.arguments[new]}", why)

    def _same_name(self, given: Given, new: str) -> None:
        argument = self.known[new]
        legal = [str(choice) for choice in argument.choices]
        if self.target != self.program.name and given.name in (*modules.BY_MODULE, *modules.OTHER_NAMES):
            self._modules(given)
            return
        if argument.type == "int" and isinstance(given.value, float) and given.usable:
            self._whole_number(given, new)
            return
        if self.target != self.program.name and given.usable:
            for gate in gated_arguments(self.target, {new: given.value}, VERSION):
                if gate.status == "ignored":
                    self.ledger.settle(given.name, "dropped", "", f"no effect there: {gate.why}")
                else:
                    self.ledger.settle(given.name, "needs a decision", "", f"`{self.target}`: {gate.why}")
                return
            if legal and any(word.text not in legal for word in given.words):
                why = f"`{self.target}` knows only {', '.join(legal)}"
                self.ledger.settle(given.name, "needs a decision", "", why)
                return
        self.arguments[new] = _words(given)
        self.ledger.settle(
            given.name,
            "carried over" if new == given.name else "renamed",
            f"--{new} {_words(given)}".rstrip(),
        )

    def _modules(self, given: Given) -> None:
        """Modules under the names that they have in the other backend."""
        if given.name in modules.OTHER_NAMES:
            why = f"names of modules, which are others in `{self.target}`: they were left out"
            self.ledger.settle(given.name, "needs a decision", "", why)
            return
        translate = modules.to_megatron if self.target.startswith("megatron") else modules.to_swift
        names = translate(given.value) if given.usable else given.problem or "not known in the script"
        if isinstance(names, str):
            self.ledger.settle(given.name, "needs a decision", "", names)
        elif names == given.value:
            self.ledger.settle(given.name, "carried over", self.put(given.name, names))
        else:
            why = (
                "Megatron joins q, k and v, and gate and up: an adapter of a joined module has one A for all"
            )
            self.ledger.settle(given.name, "re-derived", self.put(given.name, names), why)

    def _whole_number(self, given: Given, new: str) -> None:
        if given.value == int(given.value):
            outcome: Outcome = "carried over" if new == given.name else "renamed"
            self.ledger.settle(given.name, outcome, self.put(new, int(given.value)))
            return
        why = f"`{self.target}` takes whole numbers: a share of all steps has to be counted out"
        self.ledger.settle(given.name, "needs a decision", "", why)

    def put(self, name: str, value: Any) -> str:
        """Write an argument with a value of our own; returns it as a note shows it."""
        words = argument_words(value)
        self.arguments[name] = " ".join(shlex.quote(word) for word in words)
        return f"--{name} {self.arguments[name]}"

    def value(self, name: str, default: Any = None) -> Any:
        return self.program.value(name, default)


def _words(given: Given) -> str:
    if given.usable and not given.words:  # --flag or --no_flag
        return "" if given.value is True else "false"
    if given.usable and given.words and given.value != given.text and given.written != given.name:
        return " ".join(shlex.quote(word) for word in argument_words(given.value))  # changed with its name
    return " ".join(_shell(word) for word in given.words)


def _shell(word: Word) -> str:
    """A word as bash text. What the script left open stays open, in double quotes."""
    if not word.unresolved:
        return shlex.quote(word.text)
    pattern = "|".join(re.escape(source) for source in word.unresolved)
    pieces: Sequence[str] = re.split(f"({pattern})", word.text)
    escaped = [
        (f'"{piece}"' if piece in FILES else piece) if index % 2 else re.sub(r"([\\\"$`])", r"\\\1", piece)
        for index, piece in enumerate(pieces)
    ]
    return f'"{"".join(escaped)}"'
