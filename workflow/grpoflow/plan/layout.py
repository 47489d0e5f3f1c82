"""Parallel layouts of the trainer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayoutSpec:
    """Degrees of parallelism of the trainer.

    Attributes:
        world_size: Trainer ranks.
        tp, pp, cp: Tensor, pipeline and context parallelism of the dense layers.
        ep: Expert parallelism.
        etp: Tensor parallelism inside an expert. 1 is the default of Megatron-SWIFT
            (swift megatron/arguments/megatron_args.py:645), not of Megatron-core, where it follows tp.
    """

    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def model_size(self) -> int:
        """Ranks that hold one replica of the dense layers and see the same samples: TP * PP * CP."""
        return self.tp * self.pp * self.cp

    @property
    def expert_model_size(self) -> int:
        """Ranks that hold one replica of all experts: ETP * EP * PP."""
        return self.etp * self.ep * self.pp

    @property
    def dp_size(self) -> int:
        """Data-parallel size; EP is not part of it (swift megatron/arguments/megatron_args.py:337,1000)."""
        return self.world_size // self.model_size

    @property
    def edp_size(self) -> int:
        """Expert data-parallel size (megatron/core/parallel_state.py:788)."""
        return self.world_size // self.expert_model_size
