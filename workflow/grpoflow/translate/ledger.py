"""Keeps account of the arguments of one command: each gets exactly one note."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import names
from .advice import advice_on
from .hide import HIDDEN, is_secret
from .programs import Given, Program
from .report import Note, Outcome
from .scan import FILES, Word
from .slurm import Option, megabytes_of, minutes_of

SLURM_SETS = re.compile(r"\$\{?SLURM_\w+\}?")
SECRET = "a secret: export it in the shell that starts the run; it was not read"


class Ledger:
    """The arguments of a command that have no note yet, and the notes so far."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pending: dict[str, Given] = dict(program.given)
        self.notes: list[Note] = []
        for item in program.removed:
            self._add(f"--{item.written}", item.text, item.line, "dropped", "", item.why)
        if program.commented:
            why = (
                "commented out: bash does not run it. It is read all the same, since it was started "
                "somehow, in another shell for example"
            )
            self._add(f"`{program.name}`", "", program.first, "needs a decision", "", why)
        if program.condition:
            why = f"read as if it ran: it depends on {program.condition}, which is not evaluated"
            self._add("(condition)", "", program.first, "needs a decision", "", why)

    def settle(
        self, name: str, outcome: Outcome, target: str = "", why: str = "", *, advise: bool = True
    ) -> None:
        """Say what became of an argument. Does nothing where the script does not give it.

        A value that is not known, or that ms-swift would refuse, needs a decision unless it is dropped.
        """
        given = self.pending.pop(name, None)
        if given is None:
            return
        reasons = [why, given.remark, advice_on(self.program, name) if advise else ""]
        if outcome == "carried over" and given.written != given.name:
            outcome = "renamed"
        if outcome == "dropped":
            pass
        elif given.secret:
            outcome, reasons = "needs a decision", [why or SECRET]
        elif given.problem:
            outcome, reasons = "needs a decision", [f"{given.text!r} {given.problem}", given.remark]
        elif given.unresolved:
            open_ends = ", ".join(given.unresolved)
            files = set(given.unresolved) <= {*FILES}
            outcome = "needs a decision"
            unknown = "for names of files that only a shell knows" if files else "not defined in the script"
            reasons = [f"{open_ends} is {unknown}: put the value in", given.remark]
        sentence = ". ".join(reason.rstrip(".") for reason in reasons if reason)
        self._add(f"--{given.written}", given.text, given.line, outcome, target, sentence)

    def missing(self, parameter: str, outcome: Outcome, target: str, why: str) -> None:
        """Say what was written for something that the script does not have."""
        self._add(parameter, "", None, outcome, target, why)

    def variable(self, name: str, word: Word, outcome: Outcome, target: str, why: str) -> None:
        """Say what became of an environment variable."""
        if word.unresolved and all(SLURM_SETS.fullmatch(source) for source in word.unresolved):
            why = f"Slurm sets {', '.join(word.unresolved)} in the job. {why}".strip()
        elif word.unresolved and outcome != "dropped":
            outcome, why = "needs a decision", f"{word.text} is not defined in the script. {why}".strip()
        value = HIDDEN if is_secret(name) and not word.unresolved else word.text
        self._add(name, value, word.line or None, outcome, target, why)

    def _add(
        self, parameter: str, value: str, line: int | None, outcome: Outcome, target: str, why: str
    ) -> None:
        self.notes.append(Note(self.program.name, parameter, value, line, outcome, target, why))


def variable_without_effect(name: str, value: str) -> str | None:
    """Why an environment variable goes nowhere, or None if it is to be kept."""
    if is_secret(name) or HIDDEN in value:
        return SECRET
    return names.REMOVED_VARIABLES.get(name)


def profile_notes(header: Mapping[str, Option]) -> list[Note]:
    """Where each `#SBATCH` option belongs: Slurm's own knobs live in the profile of Snakemake."""
    return [_profile_note(option) for option in header.values()]


def _profile_note(option: Option) -> Note:
    target, why = ("", SECRET) if HIDDEN in option.value else _profile_entry(option.name, option.value)
    outcome: Outcome = "profile" if target else "dropped"
    return Note("", option.written, option.value, option.line, outcome, target, why)


def _profile_entry(name: str, value: str) -> tuple[str, str]:
    written = f"--{name}={value}" if value else f"--{name}"
    entries: dict[str, tuple[str, str]] = {
        "partition": (f"slurm_partition: {value}", "default-resources of profiles/slurm"),
        "account": (f"slurm_account: {value}", "default-resources of profiles/slurm"),
        "qos": (f"qos: {value}", "default-resources of profiles/slurm"),
        "constraint": (f"constraint: {value}", "default-resources of profiles/slurm"),
        "cpus-per-task": (f"cpus_per_task: {value}", "default-resources of profiles/slurm"),
        "nodes": (
            "trainer.nodes, rollout.nodes",
            "the configuration: the job gets as many nodes as its roles need",
        ),
        "gres": ("cluster.gpus_per_node", "the configuration: every node of the job is taken whole"),
        "gpus-per-node": ("cluster.gpus_per_node", "the configuration: every node of the job is taken whole"),
        "gpus": ("cluster.gpus_per_node", "the configuration: every node of the job is taken whole"),
    }
    if name == "time":
        minutes = minutes_of(value)
        target = f"runtime: {minutes}" if minutes else "runtime"
        return target, "minutes; --set-resources train_grpo:runtime=... for the training alone"
    if name in ("mem", "mem-per-gpu", "mem-per-cpu"):
        megabytes = megabytes_of(value)
        target = f"mem_mb: {megabytes}" if name == "mem" and megabytes else "mem_mb"
        return target, "MB per node, in default-resources of profiles/slurm"
    if name in entries:
        return entries[name]
    dropped = {
        "job-name": "jobs are named by the workflow",
        "output": "logs are kept per attempt in the run directory",
        "error": "logs are kept per attempt in the run directory",
        "ntasks": "one task is started on each node",
        "ntasks-per-node": "one task is started on each node",
        "requeue": "the workflow requeues its jobs by itself",
        "array": "a sweep is written as experiments: in the configuration",
    }
    if name in dropped:
        return "", dropped[name]
    return f'slurm_extra: "{written}"', "passed to sbatch as it is, from default-resources of profiles/slurm"


def plain(value: Any) -> str:
    """A value as it is shown in a note."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(plain(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
