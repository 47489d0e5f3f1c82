"""Checks that the configuration switches off, and what no configuration can do without."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator

from grpoflow.commands.tuning import accumulation_steps
from grpoflow.config import Config
from grpoflow.plan.conversion import conversion_of, gpus_that_hold
from grpoflow.plan.inputs import placement_of, sft_swift_ranks
from grpoflow.plan.problem import PlanError

from .from_plan import finding
from .rules import Finding, all_rules, rule
from .subject import Subject

GIVE_IT = ("leave it out",)


@rule(evidence="config/README.md, section preflight")
def suppressed_check_exists(subject: Subject) -> Iterator[Finding]:
    """Protects from a check that is believed to be switched off under a misspelt name."""
    known = all_rules()
    for name, reason in subject.config.preflight.suppress.items():
        if name not in known:
            near = tuple(difflib.get_close_matches(name, known, n=3))
            yield Finding(f"preflight.suppress.{name}", reason, "no check has this id", near or GIVE_IT)


@rule(evidence="workflow/grpoflow/plan: placement, conversion, layout, batch")
def plan_can_be_made(subject: Subject) -> Iterator[Finding]:
    """Protects from a workflow without a plan: no job could be written. Where another check says why, this
    one says nothing; it cannot be switched off."""
    yield from _model(subject)
    yield from _placement(subject)
    yield from _conversion(subject)
    yield from _layouts(subject)
    yield from _accumulation(subject)


def _model(subject: Subject) -> Iterator[Finding]:
    """The commands say the model type, which is read from a JSON object."""
    if subject.broken_model and not subject.hf_config:
        path = subject.config.model.path
        yield _instead_of(
            subject, Finding("model.path", path, subject.broken_model, rule="model_config_is_whole")
        )


def _placement(subject: Subject) -> Iterator[Finding]:
    try:
        placement_of(subject.config)
    except PlanError as error:
        for problem in error.problems:
            yield _instead_of(subject, finding(problem, subject, "trainer"))


def _conversion(subject: Subject) -> Iterator[Finding]:
    """How many GPUs convert and hold the weights."""
    cluster = subject.config.cluster
    if cluster.device != "cuda":
        return
    if subject.gpu is None:
        why = "how many GPUs hold the weights is not known without the memory of one"
        yield _instead_of(subject, Finding("cluster.gpu", cluster.gpu, why, rule="gpu_is_known"))
    elif error := _error(conversion_of, subject.config) or _error(gpus_that_hold, subject.config):
        fewer = range(cluster.gpus_per_node - 1, 0, -1)
        legal = tuple(gpus for gpus in fewer if not _error(conversion_of, _with_gpus(subject.config, gpus)))
        why = f"no conversion to Megatron-core: {error}"
        yield Finding("cluster.gpus_per_node", cluster.gpus_per_node, why, legal[:2])


def _layouts(subject: Subject) -> Iterator[Finding]:
    for section, layout in (("trainer", subject.layout), ("sft", subject.sft_layout)):
        for problem in layout.problem.problems if layout.problem else ():
            if problem.id != "gpu_is_known":
                found = Finding(f"{section}.parallel", "auto", problem.why, rule=problem.id)
                yield _instead_of(subject, found)


def _accumulation(subject: Subject) -> Iterator[Finding]:
    """The swift backend takes the number of micro batches of a step, which must be whole."""
    config = subject.config
    sft_ranks = sft_swift_ranks(config.sft, subject.sft_world_size) if config.sft else 0
    for section, tuner, ranks, id in (
        ("trainer", config.trainer, subject.world_size, "global_batch_divisible_by_device_batch"),
        ("sft", config.sft, sft_ranks, "sft_batch_fits_ranks"),
    ):
        if tuner is None or tuner.backend != "swift" or ranks < 1:
            continue
        try:
            accumulation_steps(tuner, ranks)
        except ValueError as error:
            key = f"{section}.global_batch_size"
            yield _instead_of(subject, Finding(key, tuner.global_batch_size, str(error), rule=id))


def _instead_of(subject: Subject, found: Finding) -> Finding:
    """The finding of a check without which there is no plan: its switching off is what is wrong."""
    reason = subject.config.preflight.suppress.get(found.rule)
    if reason is None:
        return Finding(found.key, found.value, found.why, found.legal)
    why = f"there is no plan with {found.key} {found.value}: {found.why}"
    return Finding(f"preflight.suppress.{found.rule}", reason, why, GIVE_IT)


def _error(make: Callable[[Config], object], config: Config) -> ValueError | None:
    try:
        make(config)
    except ValueError as error:
        return error
    return None


def _with_gpus(config: Config, gpus: int) -> Config:
    cluster = config.cluster.model_copy(update={"gpus_per_node": gpus})
    return config.model_copy(update={"cluster": cluster})
