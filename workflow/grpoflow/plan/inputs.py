"""From the typed configuration to the inputs of the plan."""

from __future__ import annotations

from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.plan.placement import Placement, PlacementSpec, place


def placement_of(config: Config) -> Placement:
    """Place the roles of the RL allocation.

    Raises:
        PlanError: the nodes or GPUs do not fit.
    """
    rollout, trainer, cluster = config.rollout, config.trainer, config.cluster
    if rollout.mode == "colocate":
        gpus = None if trainer.gpus is None else tuple(range(trainer.gpus))
        return place(
            PlacementSpec(
                "colocate", cluster.gpus_per_node, trainer.nodes, 0, gpus, None, rollout.tensor_parallel_size
            )
        )
    if rollout.nodes:
        return place(
            PlacementSpec(
                "server",
                cluster.gpus_per_node,
                trainer.nodes,
                rollout.nodes,
                trainer_gpus=None if trainer.gpus is None else tuple(range(trainer.gpus)),
                vllm_tp=rollout.tensor_parallel_size,
            )
        )
    served = rollout.gpus or 0
    trained = trainer.gpus or cluster.gpus_per_node - served
    return place(
        PlacementSpec(
            "split",
            cluster.gpus_per_node,
            trainer_gpus=tuple(range(served, served + trained)),
            rollout_gpus=tuple(range(served)),
            vllm_tp=rollout.tensor_parallel_size,
        )
    )


def parallel_of(config: Config, world_size: int) -> Parallel:
    """The parallel layout of the trainer, resolved where the configuration says `auto`."""
    parallel = config.trainer.parallel
    if parallel == "auto":
        if world_size == 1:
            return Parallel()
        raise NotImplementedError("trainer.parallel: auto")
    return parallel
