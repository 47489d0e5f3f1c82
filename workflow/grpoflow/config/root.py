"""The whole configuration of one experiment."""

from __future__ import annotations

from pydantic import model_validator

from .base import Section, section
from .cluster import ClusterConfig
from .convert import ConvertConfig
from .data import DataConfig
from .evaluate import EvaluateConfig
from .export import ExportConfig
from .model import ModelConfig
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

    @model_validator(mode="after")
    def server_has_a_place(self) -> Config:
        rollout, trainer = self.rollout, self.trainer
        if rollout.mode == "server":
            if rollout.nodes == 0 and rollout.gpus is None:
                raise ValueError(
                    "rollout.nodes is 0: give rollout.gpus, the GPUs it takes on the trainer's node"
                )
            if rollout.nodes > 0 and rollout.gpus is not None:
                raise ValueError(
                    f"rollout.gpus ({rollout.gpus}) splits the trainer's node and needs rollout.nodes: 0, "
                    f"not {rollout.nodes}"
                )
            if rollout.nodes == 0 and trainer.nodes != 1:
                raise ValueError(
                    f"a node shared by server and trainer needs trainer.nodes: 1, not {trainer.nodes}; "
                    "or give the server nodes of its own with rollout.nodes"
                )
        return self
