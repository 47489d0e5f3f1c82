"""How many ranks convert a checkpoint between Hugging Face and Megatron-core, and how they split it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.models.architecture import Architecture, ArchitectureError
from grpoflow.models.counts import count_parameters
from grpoflow.plan.hardware import gpu_named
from grpoflow.plan.inputs import DTYPE_BYTES, architecture_of, megatron_core_of
from grpoflow.plan.layout import LayoutSpec, check_layout
from grpoflow.plan.problem import errors_of

SHARE = 0.6
"""Of a GPU's memory for the weights; the rest is for the tensors on their way to or from a file, several of
them gathered over the ranks at once."""


@dataclass(frozen=True)
class Conversion:
    """Ranks of `megatron export`."""

    nodes: int = 1
    nproc_per_node: int = 1
    parallel: Parallel | None = None
    """None for a single process."""


ONE_PROCESS = Conversion()


def conversion_of(config: Config) -> Conversion:
    """The fewest nodes whose GPUs hold the weights: one process where one GPU does, and on a CPU.

    An unknown architecture, or one that is not there yet, is taken for a small one.

    Raises:
        ValueError: the GPU is unknown, or no split of the weights is legal.
    """
    if config.cluster.device != "cuda" or config.trainer.backend != "megatron":
        return ONE_PROCESS
    arch = _known(config)
    if arch is None:
        return ONE_PROCESS
    per_node, room, counts = config.cluster.gpus_per_node, _room(config), count_parameters(arch)
    if counts.total <= room:
        return ONE_PROCESS
    fewest = math.ceil(counts.total / (room * per_node))
    for nodes in range(fewest, 4 * fewest):
        for parallel in _splits(arch, nodes * per_node, per_node):
            held = (counts.total - counts.experts) / parallel.tensor + counts.experts / parallel.expert
            if held / parallel.pipeline <= room and _is_legal(config, arch, parallel, nodes * per_node):
                return Conversion(nodes, per_node, parallel)
    raise ValueError(
        f"{counts.total:.3g} parameters: no legal split over up to {4 * fewest} nodes holds them"
    )


def gpus_that_hold(config: Config) -> int:
    """GPUs of one node over which the weights are spread to be run; the rest of them goes to the host.

    Raises:
        ValueError: the GPU is unknown.
    """
    arch = _known(config)
    needed = math.ceil(count_parameters(arch).total / _room(config)) if arch else 1
    return min(needed, config.cluster.gpus_per_node)


def _known(config: Config) -> Architecture | None:
    try:
        return architecture_of(config)
    except (OSError, ArchitectureError):
        return None


def _room(config: Config) -> float:
    """Parameters that one GPU holds."""
    return SHARE * gpu_named(config.cluster.gpu).memory / DTYPE_BYTES[config.model.torch_dtype]


def converts_back(config: Config) -> bool:
    """Whether the export reads weights out of the trainer's own checkpoint; that of an adapter has none."""
    return config.trainer.backend == "megatron" and config.trainer.tuner == "full"


def _is_legal(config: Config, arch: Architecture, parallel: Parallel, world: int) -> bool:
    spec = LayoutSpec(world, tp=parallel.tensor, pp=parallel.pipeline, ep=parallel.expert)
    core = megatron_core_of(config)
    return not errors_of(
        check_layout(arch, spec, gpus_per_node=config.cluster.gpus_per_node, megatron_core=core)
    )


def _splits(arch: Architecture, world: int, per_node: int) -> Iterator[Parallel]:
    """Splits of the weights over all ranks, those of the least traffic first."""
    if arch.moe:
        yield Parallel(expert=world)
        for pipeline in range(2, world + 1):
            if world % pipeline == 0:
                yield Parallel(pipeline=pipeline, expert=world // pipeline)
    for tensor in range(per_node, 0, -1):
        if world % tensor == 0:
            yield Parallel(tensor=tensor, pipeline=world // tensor)
