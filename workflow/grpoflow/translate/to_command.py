"""The equivalent command of the other backend, or the same one with today's names."""

from __future__ import annotations

import re
from typing import Literal

from grpoflow.plan.batch import check_batch
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.problem import errors_of

from . import batch
from .hide import HIDDEN
from .ledger import profile_notes
from .programs import TRAINERS, Program, missing_file, read_source
from .report import Note, Translation
from .to_megatron import ToMegatron
from .to_swift import ToSwift
from .translator import Translator

Backend = Literal["megatron", "swift"]


def translate_command(text: str, to: Backend) -> Translation:
    """Translate every training command of a script; `swift rollout` serves both backends and stays.

    The numbers after the translation are read back from the command as it is printed.
    """
    source = read_source(text)
    notes: list[Note] = profile_notes(source.script.header)
    header = [option.line_text for option in source.script.header.values() if HIDDEN not in option.value]
    pieces = ["\n".join(header)]
    batches: list[batch.BatchComparison] = []
    problems = [*source.unclosed()]
    for program in source.programs:
        translator = _translator(program, to)
        command = translator.translate()
        if program.file is not None:
            problems.append(missing_file(program.name, program.file))
        pieces.append(re.sub("^", "# ", command, flags=re.MULTILINE) if program.commented else command)
        notes += translator.ledger.notes
        if program.name in TRAINERS and not program.commented:
            comparison, refused = _compare(program, command)
            batches.append(comparison)
            problems += refused
    return Translation(
        to=to,
        text="\n\n".join(filter(None, pieces)) if source.programs else "",
        notes=tuple(notes),
        unread=source.unread,
        batches=tuple(batches),
        problems=tuple(problems),
    )


def _translator(program: Program, to: Backend) -> Translator:
    if program.name not in TRAINERS or program.backend == to:
        return Translator(program, program.name)
    target = f"{to} {program.name.partition(' ')[2]}"
    return ToMegatron(program, target) if to == "megatron" else ToSwift(program, target)


def _compare(program: Program, command: str) -> tuple[batch.BatchComparison, list[str]]:
    """Compare the numbers of the script with those of the printed command."""
    translated = read_source(command).programs[0]
    before, after, unknown = (
        batch.numbers_of(program),
        batch.numbers_of(translated),
        batch.unknown_of(program),
    )
    refused = [f"{translated.name}: {problem}" for problem in batch.problems_of(translated)]
    if refused and translated.backend == "megatron" and program.backend == "swift":
        refused += _other_layouts(program)
    refused += [
        f"{program.name}, as it is in the script: {problem}" for problem in batch.problems_of(program)
    ]
    if unknown:
        return batch.BatchComparison(program.name, None, after, "; ".join(unknown)), refused
    why = "" if before.same_training(after) else _why_different(before, after)
    return batch.BatchComparison(program.name, before, after, why), refused


def _why_different(before: batch.Numbers, after: batch.Numbers) -> str:
    reasons = []
    if before.step != after.step:
        reasons.append(
            f"{before.step} samples per step do not divide by {after.world_size} GPUs, each of which takes "
            f"as many as the others in the swift backend: rounded up to {after.step}"
        )
    if before.step == after.step and before.rollout != after.rollout:
        reasons.append(
            f"a rollout of {before.rollout} completions is not a whole number of steps of {before.step}, and "
            "Megatron-SWIFT makes whole steps from each (swift/megatron/arguments/megatron_args.py:272)"
        )
    if before.iterations != after.iterations:
        reasons.append(
            f"num_iterations {before.iterations} is refused by Megatron GRPO, which uses a rollout once"
        )
    return "; ".join(reasons) or "the rollout follows the step"


def _other_layouts(program: Program) -> list[str]:
    """Tensor-parallel sizes that make the same completions per step legal in Megatron."""
    world_size = batch.world_size_of(program)
    for tp in (2, 4, 8):
        if world_size % tp == 0:
            layout = LayoutSpec(world_size, tp=tp)
            spec = batch.to_megatron(program, layout)
            if not errors_of(check_batch(spec, layout)):
                return [
                    f"The same completions per step are accepted with --tensor_model_parallel_size {tp} "
                    f"--micro_batch_size {spec.micro_batch_size}"
                ]
    return []
