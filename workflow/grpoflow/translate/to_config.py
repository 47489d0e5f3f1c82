"""A grpoflow configuration that does what a script does."""

from __future__ import annotations

import yaml

from grpoflow.config import ConfigError, load_experiments
from grpoflow.config.load import DEFAULT_EXPERIMENT
from grpoflow.plan.inputs import placement_of
from grpoflow.plan.problem import PlanError

from . import batch
from .config_cluster import read_environment, read_images, read_placement, read_server
from .config_training import pass_on_the_rest, placeholders_for_grpo, read_grpo, read_model, read_sft
from .config_writer import ConfigWriter
from .ledger import profile_notes
from .programs import missing_file, read_source
from .report import Translation


def translate_to_config(text: str) -> Translation:
    """Write the configuration of the first GRPO command of a script, of its server and of its SFT command.

    The backend stays the one of the script. What the script does not say and the configuration must is
    written as a placeholder, with a comment and a note. Placeholders are legal, so that the file validates.
    """
    source = read_source(text)
    unclosed = source.unclosed()
    trainer = source.first("swift rlhf", "megatron rlhf")
    notes = profile_notes(source.script.header)
    if trainer is not None and not batch.is_grpo(trainer):
        kind = trainer.value("rlhf_type", "dpo")
        problem = f"line {trainer.first}: --rlhf_type {kind}: grpoflow trains with GRPO only"
        if trainer.file is not None and "rlhf_type" not in trainer.given:
            problem = missing_file(trainer.name, trainer.file)
        return Translation("config", "", tuple(notes), source.unread, (), (*unclosed, problem))
    writer = ConfigWriter(source)
    if writer.trainer is None and writer.sft is None:
        return Translation("config", "", tuple(notes), source.unread, (), unclosed)
    _write(writer)
    missing = [
        missing_file(program.name, program.file)
        for program in (writer.trainer, writer.server, writer.sft)
        if program is not None and program.file is not None
    ]
    written = writer.text()
    comparisons, problems = _check(written, writer)
    return Translation(
        "config",
        written,
        (*notes, *writer.notes()),
        source.unread,
        tuple(comparisons),
        (*unclosed, *missing, *problems),
    )


def _write(w: ConfigWriter) -> None:
    """Fill `values` from all commands."""
    read_model(w)
    read_placement(w)
    if w.trainer is not None:
        read_grpo(w, w.trainer, w.ledgers["trainer"])
    else:
        placeholders_for_grpo(w)
    if w.sft is not None:
        read_sft(w, w.sft, w.ledgers["sft"])
    if w.server is not None:
        read_server(w, w.ledgers["rollout"])
    read_images(w)
    read_environment(w)
    w.decide(
        "cluster.environment",
        ".envs/gpu",
        "the prefix of the Python environment that holds ms-swift and vLLM",
    )
    for section, ledger in w.ledgers.items():
        pass_on_the_rest(w, section, ledger)
    for program in w.source.programs:
        if program not in (w.trainer, w.server, w.sft):
            why = "a second command of its kind: make it an experiment of its own (experiments:)"
            w.note(f"`{program.name}`", "needs a decision", "", why, program.first)


def _check(text: str, writer: ConfigWriter) -> tuple[list[batch.BatchComparison], list[str]]:
    """Load the configuration that was written, and compare its numbers with those of the script."""
    try:
        config = load_experiments(yaml.safe_load(text))[DEFAULT_EXPERIMENT]
    except ConfigError as error:
        why = "the configuration is refused"
        comparisons = [
            batch.BatchComparison(program.name, batch.numbers_of(program), None, why)
            for program in (writer.trainer, writer.sft)
            if program is not None
        ]
        return comparisons, [str(problem) for problem in error.problems]
    comparisons, problems = [], []
    try:
        placement_of(config)
    except PlanError as error:
        problems += [str(problem) for problem in error.problems]
    for section, program in (("trainer", writer.trainer), ("sft", writer.sft)):
        if program is None:
            continue
        before, after = batch.numbers_of(program), batch.numbers_of_config(config, section)
        unknown = batch.unknown_of(program)
        why = "; ".join(unknown)
        if not unknown and not before.same_training(after):
            why = (
                f"a rollout of {before.rollout} completions is not a whole number of steps of {before.step}, "
                "and trainer.steps_per_generation counts whole steps"
            )
        comparisons.append(batch.BatchComparison(program.name, None if unknown else before, after, why))
        problems += [
            f"{section}.{problem}" for problem in batch.problems_of_config(config, section, after.world_size)
        ]
        problems += [
            f"{program.name}, as it is in the script: {problem}" for problem in batch.problems_of(program)
        ]
    return comparisons, problems
