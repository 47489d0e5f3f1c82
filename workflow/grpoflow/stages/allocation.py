"""What the RL job is given: resources of its rule, of the profile and of the command line, and the script."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpoflow.config import Config, read_yaml
from grpoflow.launch.job import rehearse, sbatch_script
from grpoflow.launch.run import RESULTS, RunDirectory
from grpoflow.launch.slurm import NoAnswer
from grpoflow.plan.inputs import placement_of
from grpoflow.preflight.subject import DEFAULT_WALL_TIME

from .base import StageFailed
from .needs import RL_RULES, cpus_of, gres_of, mem_mb_of

RUN = "RUN"
"""Stands for the name of a run, which follows from the frozen data and the start and so is not known yet."""


class ProfileError(ValueError):
    """A profile says something that Snakemake would refuse."""


def launcher_of(resources: Mapping[str, Any]) -> str:
    """Where the RL job runs: "slurm" or "local".

    Raises:
        StageFailed: the profile does not say so, or was overruled.
    """
    launcher = str(resources.get("launcher", ""))
    if launcher not in ("slurm", "local"):
        raise StageFailed(
            f"the resource launcher is {launcher or 'not set'}: nothing says where the RL job is to run. The "
            "profiles set it in default-resources (launcher=slurm in profiles/slurm, launcher=local in "
            "profiles/local), and a --default-resources on the command line replaces all of them, mem_mb and "
            "runtime included. Give --set-resources RULE:NAME=VALUE instead, such as "
            "train_grpo:slurm_partition=gpu, or edit the profile, or repeat its default-resources"
        )
    return launcher


def profile_resources(profile: Path, config: Config) -> dict[str, Any]:
    """The resources of the RL job under a Snakemake profile: its `set-resources` for the two rules, what the
    rules say, its `default-resources`, in this order.

    Raises:
        OSError, ConfigError: the profile cannot be read.
        ProfileError: a size or a time in it is none.
    """
    path = profile / "config.yaml" if profile.is_dir() else profile
    settings = read_yaml(path)
    given: dict[str, Any] = {}
    for rule, resources in _by_rule(settings.get("set-resources", {})).items():
        if rule in RL_RULES:
            given |= resources
    own = {
        "mem_mb": mem_mb_of("train_grpo", config),
        "gres": gres_of("train_grpo", config),
        "cpus_per_task": cpus_of("train_grpo", config),
        "runtime": DEFAULT_WALL_TIME,
    }
    return _normal(_pairs(settings.get("default-resources", {}))) | own | _normal(given)


def _normal(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and times as Snakemake hands them to a rule: `mem: 900GB` is mem_mb, `runtime: 2d` is minutes."""
    from snakemake.exceptions import WorkflowError  # type: ignore[import-untyped]  # noqa: PLC0415 - slow
    from snakemake.resources import Resource  # type: ignore[import-untyped]  # noqa: PLC0415

    found = {name: _plain(value) for name, value in resources.items()}
    try:
        if "runtime" in found:
            found["runtime"] = Resource.parse_human_friendly("runtime", found["runtime"])
        if "mem" in found:
            found["mem_mb"] = Resource.parse_human_friendly("mem", found.pop("mem"))
    except WorkflowError as error:
        raise ProfileError(str(error)) from error
    return found


def _pairs(value: Any) -> dict[str, Any]:
    """`{name: value}` or `[name=value, ...]`, as Snakemake takes both."""
    if isinstance(value, Mapping):
        return dict(value)
    return dict(item.partition("=")[::2] for item in value or ())


def _by_rule(value: Any) -> dict[str, dict[str, Any]]:
    if isinstance(value, Mapping):
        return {rule: dict(resources) for rule, resources in value.items()}
    found: dict[str, dict[str, Any]] = {}
    for item in value or ():
        rule, _, pair = item.partition(":")
        found.setdefault(rule, {}).update(_pairs([pair]))
    return found


def _plain(value: Any) -> Any:
    """Snakemake evaluates texts: a quoted one is itself, digits are a number."""
    if not isinstance(value, str):
        return value
    text = value.strip().strip("\"'")
    return int(text) if text.isdigit() else text


def script_of(experiment: str, config: Config, resources: Mapping[str, Any], run: str = RUN) -> str:
    """The script of the RL job.

    Raises:
        SubmissionFailed: `slurm_extra` cannot be read.
    """
    directory = RunDirectory((RESULTS / experiment / "runs" / run).absolute())
    return sbatch_script(experiment, len(placement_of(config).nodes), directory, resources)


def asked_of_slurm(script: str) -> str:
    """What Slurm says to the script, or why it was not asked.

    Raises:
        SubmissionFailed: it would refuse the job.
    """
    try:
        return rehearse(script)
    except NoAnswer as error:
        return f"not asked: {error}"
