"""The `args` sections: what is passed through to which command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpoflow.config import Config

from .modelled import BENCHMARKS


@dataclass(frozen=True)
class Passthrough:
    """One `args` section and the command that it goes to."""

    section: str
    command: str
    args: Mapping[str, Any]


def passthrough(config: Config) -> list[Passthrough]:
    """The `args` of every command that the configuration leads to."""
    found = [Passthrough("trainer", f"{config.trainer.backend} rlhf", config.trainer.args)]
    if config.rollout.mode == "server":
        found.append(Passthrough("rollout", "swift rollout", config.rollout.args))
    if config.sft is not None:
        found.append(Passthrough("sft", f"{config.sft.backend} sft", config.sft.args))
    if config.evaluate.benchmarks is not None:
        found.append(Passthrough(BENCHMARKS, "swift eval", config.evaluate.benchmarks.args))
    return found


def usable(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that have a form on a command line: no null, alone or in a list."""
    return {
        name: value
        for name, value in args.items()
        if value is not None and not (isinstance(value, list) and None in value)
    }
