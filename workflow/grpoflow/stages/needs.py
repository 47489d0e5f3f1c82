"""What the jobs of the stages ask of Slurm where nobody says more: GPUs, CPUs and host memory of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grpoflow.config import Config
from grpoflow.models.counts import count_parameters
from grpoflow.plan.conversion import conversion_of, converts_back, gpus_that_hold
from grpoflow.plan.inference import inference_of
from grpoflow.plan.inputs import DTYPE_BYTES, placement_of, sft_ranks_per_node
from grpoflow.plan.memory import host_bytes_per_node
from grpoflow.preflight.estimate import sft_ranks, trainer_ranks
from grpoflow.preflight.subject import Subject

RL_RULES = ("rollout_server", "train_grpo")
"""Two rules, one job: what is set for one of them is set for the job."""

MIB = 2**20
BASE_MIB = 16000
"""Of every stage that runs a program, on CPUs too."""
MIB_PER_GPU = 8192
CPUS_PER_GPU = 4
WEIGHT_COPIES = 2
"""Of all weights in host memory, while they are read, gathered or written."""
SHARE = 0.95
"""Of the node's memory; the rest is Slurm's and the system's."""


GPUS: Mapping[str, Callable[[Config], int]] = {
    "sft": sft_ranks_per_node,
    "convert_to_mcore": lambda config: conversion_of(config).nproc_per_node,
    "rollout_server": lambda config: placement_of(config).gpus_per_node,
    "train_grpo": lambda config: placement_of(config).gpus_per_node,
    "evaluate": lambda config: inference_of(config).gpus_per_node,
    "benchmarks": lambda config: inference_of(config).gpus_per_node,
    "export_hf": lambda config: (
        conversion_of(config).nproc_per_node if converts_back(config) else gpus_that_hold(config)
    ),
    "probe_nodes": lambda config: config.cluster.gpus_per_node,
}
"""GPUs that the programs of a rule use on each of its nodes; the other rules use none."""


def gpus_of(rule: str, config: Config) -> int:
    """GPUs that a rule's programs use on each of its nodes.

    Raises:
        PlanError, ValueError: the configuration has no placement, or no split of the weights.
    """
    return GPUS[rule](config) if config.cluster.device == "cuda" and rule in GPUS else 0


def gres_of(rule: str, config: Config) -> str:
    """Generic resource of a node in Slurm; without a type, which every site names in its own way."""
    gpus = gpus_of(rule, config)
    return f"gpu:{gpus}" if gpus else ""


def cpus_of(rule: str, config: Config) -> int:
    """CPUs of a node, an assumption: each rank has its own thread, one of NCCL and workers that load data.
    With Snakemake's default of one, all ranks of a node share a single CPU."""
    return max(1, CPUS_PER_GPU * gpus_of(rule, config))


def mem_mb_of(rule: str, config: Config) -> int:
    """Host memory of a node, in MiB (Snakemake's mem_mb goes to Slurm as it is, and Slurm's M is MiB).

    An assumption, on the high side: what is offloaded, as the plan has it, all weights twice, and 8 GiB for
    each process with a GPU; at most what `cluster.host_memory_gib` leaves. Of the one run that was measured,
    23 GiB of the 40 that are asked for were used (docs/measurements.md, one-colocate).
    """
    gpus = gpus_of(rule, config)
    if not gpus:
        return BASE_MIB
    needed = BASE_MIB + gpus * MIB_PER_GPU
    subject = Subject(rule, config)
    if subject.architecture is not None:
        parameters = count_parameters(subject.architecture).total
        needed += WEIGHT_COPIES * parameters * DTYPE_BYTES[config.model.torch_dtype] // MIB
    ranks = trainer_ranks(subject) if rule in RL_RULES else sft_ranks(subject) if rule == "sft" else []
    needed += host_bytes_per_node(ranks, gpus) // MIB
    if config.cluster.host_memory_gib is not None:
        needed = min(needed, int(SHARE * config.cluster.host_memory_gib * 1024))
    return needed
