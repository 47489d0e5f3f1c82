"""The whole configuration of one experiment."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from .base import Section, conflict, conflicts, section
from .cluster import ClusterConfig
from .convert import ConvertConfig
from .data import DataConfig
from .evaluate import EvaluateConfig
from .export import ExportConfig
from .model import ModelConfig
from .preflight import PreflightConfig
from .rewards import RewardsConfig
from .rollout import RolloutConfig
from .sft import SftConfig
from .tracking import TrackingConfig
from .trainer import TrainerConfig


class Config(Section):
    model: ModelConfig = section()
    data: DataConfig = section()
    rewards: RewardsConfig = section()
    cluster: ClusterConfig = section()
    sft: SftConfig | None = section(None)
    convert: ConvertConfig = section(ConvertConfig)
    rollout: RolloutConfig = section(RolloutConfig)
    trainer: TrainerConfig = section()
    evaluate: EvaluateConfig = section(EvaluateConfig)
    export: ExportConfig = section(ExportConfig)
    tracking: TrackingConfig = section(TrackingConfig)
    preflight: PreflightConfig = section(PreflightConfig)

    @model_validator(mode="after")
    def sections_agree(self) -> Config:
        """All that disagrees at once: validators of their own would end with the first."""
        if found := [*self._cached_prompts(), *self._exported_adapter(), *self._place_of_the_server()]:
            raise conflicts(found)
        return self

    def _cached_prompts(self) -> Iterator[PydanticCustomError]:
        if self.data.grpo_cached and self.trainer.backend != "megatron":
            why = "swift rlhf refuses --cached_dataset for GRPO (ms-swift swift/arguments/rlhf_args.py:343)"
            yield conflict("data.grpo_cached", True, why, "false, or trainer.backend: megatron")

    def _exported_adapter(self) -> Iterator[PydanticCustomError]:
        if self.export.lora == "adapter" and self.trainer.tuner != "lora":
            why = f"trainer.tuner is {self.trainer.tuner}, which makes no adapter"
            yield conflict("export.lora", "adapter", why, "merged, or trainer.tuner: lora")

    def _place_of_the_server(self) -> Iterator[PydanticCustomError]:
        rollout, trainer, gpus = self.rollout, self.trainer, self.cluster.gpus_per_node
        if rollout.mode != "server":
            return
        if rollout.nodes == 0 and gpus == 1:
            why = "a node of one GPU cannot be shared by server and trainer"
            yield conflict("rollout.nodes", 0, why, "1, or rollout.mode: colocate")
        elif rollout.nodes == 0 and rollout.gpus is None:
            why = "without nodes of its own the server takes GPUs of the trainer's node: say how many"
            yield conflict("rollout.gpus", None, why, f"1 to {gpus - 1}" if gpus > 2 else "1")
        if rollout.nodes > 0 and rollout.gpus is not None:
            why = f"splits the trainer's node, which needs rollout.nodes: 0, not {rollout.nodes}"
            yield conflict("rollout.gpus", rollout.gpus, why, "null")
        if rollout.nodes == 0 and trainer.nodes != 1:
            why = (
                "only one node can be shared by server and trainer; give the server nodes of its own with "
                "rollout.nodes"
            )
            yield conflict("trainer.nodes", trainer.nodes, why, "1")
