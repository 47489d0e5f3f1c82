"""What reward functions are made with outside of the trainers: in dry runs and in evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpoflow.config import Config
from grpoflow.facts.arguments import CatalogueError, load_catalogue
from grpoflow.facts.versions import VersionError


def reward_request(config: Config) -> dict[str, Any]:
    """The part of a request that names the reward functions (grpoflow.training_env.rewards)."""
    rewards = config.rewards
    return {
        "plugin": rewards.plugin and str(Path(rewards.plugin).absolute()),
        "functions": rewards.functions,
        "args": function_arguments(config),
    }


def function_arguments(config: Config) -> dict[str, Any]:
    """Arguments that built-in reward functions read, with the defaults of the release."""
    longest = config.trainer.max_completion_length
    found: dict[str, Any] = {"max_completion_length": longest}
    try:
        known = load_catalogue(config.cluster.ms_swift).arguments(f"{config.trainer.backend} rlhf")
    except (CatalogueError, VersionError):
        known = {}
    for name, argument in known.items():
        if name.startswith(("cosine_", "repetition_", "soft_")):
            found[name] = argument.default
    found |= {name: longest for name in ("cosine_max_len", "soft_max_length") if found.get(name) is None}
    return found | dict(config.trainer.args)
