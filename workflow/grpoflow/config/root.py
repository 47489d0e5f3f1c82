"""The whole configuration of one experiment."""

from __future__ import annotations

from pydantic import model_validator

from .base import Section, conflict, section
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
    def only_megatron_reads_cached_prompts(self) -> Config:
        if self.data.grpo_cached and self.trainer.backend != "megatron":
            why = "swift rlhf refuses --cached_dataset for GRPO (ms-swift swift/arguments/rlhf_args.py:343)"
            raise conflict("data.grpo_cached", True, why, "false, or trainer.backend: megatron")
        return self

    @model_validator(mode="after")
    def an_exported_adapter_was_trained(self) -> Config:
        if self.export.lora == "adapter" and self.trainer.tuner != "lora":
            why = f"trainer.tuner is {self.trainer.tuner}, which makes no adapter"
            raise conflict("export.lora", "adapter", why, "merged, or trainer.tuner: lora")
        return self

    @model_validator(mode="after")
    def server_has_a_place(self) -> Config:
        rollout, trainer = self.rollout, self.trainer
        if rollout.mode == "server":
            if rollout.nodes == 0 and rollout.gpus is None:
                why = "without nodes of its own the server takes GPUs of the trainer's node: say how many"
                raise conflict("rollout.gpus", None, why, f"1 to {self.cluster.gpus_per_node - 1}")
            if rollout.nodes > 0 and rollout.gpus is not None:
                why = f"splits the trainer's node, which needs rollout.nodes: 0, not {rollout.nodes}"
                raise conflict("rollout.gpus", rollout.gpus, why, "null")
            if rollout.nodes == 0 and trainer.nodes != 1:
                why = (
                    "only one node can be shared by server and trainer; give the server nodes of its own "
                    "with rollout.nodes"
                )
                raise conflict("trainer.nodes", trainer.nodes, why, "1")
        return self
