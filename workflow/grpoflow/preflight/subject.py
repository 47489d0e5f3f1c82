"""One experiment under test: its configuration and what follows from it, each worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.facts.installed import installed_packages
from grpoflow.models.architecture import Architecture, ArchitectureError, UnknownModel
from grpoflow.plan.auto import Choice
from grpoflow.plan.hardware import GPUS, Gpu
from grpoflow.plan.inputs import (
    architecture_of,
    auto_choice,
    layout_spec,
    megatron_core_of,
    placement_spec,
    read_hf_config,
    sft_auto_choice,
    sft_ranks_per_node,
)
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.problem import PlanError

from .probed import Node, probed_node

YES_WORDS, NO_WORDS = ("1", "y", "yes", "t", "true", "on"), ("0", "n", "no", "f", "false", "off")
"""Of a variable that mcore-bridge reads with strtobool (mcore_bridge/utils/utils.py:47); others end it."""
DEFAULT_WALL_TIME = 1440
"""Minutes that the rule train_grpo asks for unless the profile or the command line says otherwise."""


@dataclass(frozen=True)
class Layout:
    """A layout: as configured, or chosen. `problem` says why `auto` found none."""

    spec: LayoutSpec | None
    choice: Choice | None = None
    problem: PlanError | None = None


@dataclass(frozen=True)
class Subject:
    """An experiment, and what its RL job asks of Slurm, where that is known (resources of train_grpo)."""

    experiment: str
    config: Config
    resources: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wall_time(self) -> int:
        """Of the RL job, in minutes."""
        return int(self.resources.get("runtime") or DEFAULT_WALL_TIME)

    @cached_property
    def hf_config(self) -> dict[str, Any]:
        """config.json of the checkpoint as it is; empty where it cannot be read."""
        try:
            return read_hf_config(self.config)
        except (OSError, ArchitectureError):
            return {}

    @cached_property
    def _architecture(self) -> Architecture | str:
        try:
            return architecture_of(self.config)
        except FileNotFoundError:
            return f"{self.config.model.path}/config.json is not there yet"
        except OSError as error:
            return f"{self.config.model.path}/config.json cannot be read: {error.strerror}"
        except ArchitectureError as error:
            return str(error)

    @property
    def architecture(self) -> Architecture | None:
        """What config.json says, or None."""
        found = self._architecture
        return found if isinstance(found, Architecture) else None

    @cached_property
    def broken_model(self) -> str:
        """What is wrong with config.json, which is there; "" for a model that is only not supported."""
        try:
            architecture_of(self.config)
        except (FileNotFoundError, UnknownModel):
            return ""
        except OSError as error:
            return f"config.json cannot be read: {error.strerror}"
        except ArchitectureError as error:
            return str(error)
        return ""

    @property
    def no_architecture(self) -> str:
        """Why there is no architecture; "" where there is one."""
        found = self._architecture
        return found if isinstance(found, str) else ""

    @cached_property
    def packages(self) -> dict[str, str]:
        """Versions in the training environment; empty where it is not on this machine."""
        return installed_packages(self.config.cluster.environment)

    @cached_property
    def node(self) -> Node:
        """What the first of the probed nodes said; nothing where none was probed."""
        return probed_node(self.config)

    @property
    def software(self) -> Mapping[str, str]:
        """Versions by package: those that a node sees, else those of the environment's metadata."""
        return self.node.packages or self.packages

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """That of the nodes' GPUs, or of the configured one; None on a CPU and for an unknown GPU."""
        if self.config.cluster.device != "cuda":
            return None
        return self.node.compute_capability or (self.gpu.compute_capability if self.gpu else None)

    @property
    def megatron_core(self) -> tuple[int, int]:
        """Release of megatron-core, major and minor."""
        return megatron_core_of(self.config)

    @property
    def without_mcore_gdn(self) -> str | None:
        """USE_MCORE_GDN where it says no, in any of the words that mcore-bridge takes for it."""
        switch = self.config.cluster.env.get("USE_MCORE_GDN", "")
        return switch if switch.lower() in NO_WORDS else None

    @property
    def gpu(self) -> Gpu | None:
        """The GPU's data, or None on a CPU and for an unknown name."""
        if self.config.cluster.device != "cuda":
            return None
        return GPUS.get(self.config.cluster.gpu.removeprefix("NVIDIA "))

    @cached_property
    def world_size(self) -> int:
        """Trainer ranks of GRPO."""
        return placement_spec(self.config).trainer_world_size

    @property
    def sft_world_size(self) -> int:
        """Ranks of the SFT stage; 0 without one."""
        sft = self.config.sft
        return sft.nodes * sft_ranks_per_node(self.config) if sft else 0

    @cached_property
    def layout(self) -> Layout:
        """Layout of the GRPO trainer; the swift backend has none."""
        trainer = self.config.trainer
        if trainer.backend == "swift":
            return Layout(None)
        return self._layout(trainer.parallel, self.world_size, trainer.args, sft=False)

    @cached_property
    def sft_layout(self) -> Layout:
        """Layout of the SFT trainer; the swift backend has none."""
        sft = self.config.sft
        if sft is None or sft.backend == "swift":
            return Layout(None)
        return self._layout(sft.parallel, self.sft_world_size, sft.args, sft=True)

    def _layout(
        self, parallel: Parallel | str, world_size: int, args: dict[str, Any], *, sft: bool
    ) -> Layout:
        if world_size < 1:
            return Layout(None)  # the placement checks say so
        if isinstance(parallel, Parallel):
            return Layout(layout_spec(parallel, world_size, args))
        if world_size == 1:
            return Layout(LayoutSpec(1))
        if self.architecture is None:
            return Layout(None)
        choose = sft_auto_choice if sft else auto_choice
        try:
            choice = choose(self.config, self.architecture, world_size)
        except PlanError as error:
            return Layout(None, problem=error)
        return Layout(choice.best.layout, choice)
