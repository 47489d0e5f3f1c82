"""What the RL job asks of Slurm: known where Snakemake runs the checks, with its profile."""

from __future__ import annotations

from collections.abc import Iterator

from grpoflow.plan.inputs import placement_of
from grpoflow.plan.memory import host_bytes_per_node
from grpoflow.plan.problem import PlanError

from .estimate import trainer_ranks
from .rules import Finding, rule
from .subject import Subject

MIB_PER_PROCESS = 4096
"""Least host memory of a process with a GPU, an assumption: on a CPU, without a CUDA context and with a model
of some MiB, a rank of the trainer and a vLLM worker hold 1 to 2 GB."""
OTHER_WAYS = {"exclusive", "gres", "gpus", "gpus-per-node", "gpus-per-task"}
"""Options in `slurm_extra` that ask for GPUs in another way than `gres`."""


@rule(evidence="Slurm sbatch(1), --gres")
def job_asks_for_its_gpus(subject: Subject) -> Iterator[Finding]:
    """Protects from a job that waits in the queue and then finds too few GPUs."""
    resources, needed = subject.resources, _gpus_of_a_node(subject)
    if resources.get("launcher") != "slurm" or not needed:
        return
    options = {part.lstrip("-").partition("=")[0] for part in str(resources.get("slurm_extra")).split()}
    gres = resources.get("gres")
    # an empty one is somebody's decision: the rule itself asks for as many as it needs
    if gres == "" or options & OTHER_WAYS:
        return
    if gpus_in(str(gres or "")) < needed:
        why = f"the job runs a program on {needed} GPUs of a node (resources of train_grpo)"
        legal = (f"gpu:{needed}", f"slurm_extra: --gpus-per-node={needed}", "slurm_extra: --exclusive")
        yield Finding("resources.gres", gres, why, legal)


@rule(evidence="Slurm sbatch(1), --mem", level="warn")
def job_asks_for_its_memory(subject: Subject) -> Iterator[Finding]:
    """Protects from a job that Slurm kills for its host memory while it loads the model."""
    resources, gpus = subject.resources, _gpus_of_a_node(subject)
    asked = resources.get("mem_mb")
    if resources.get("launcher") != "slurm" or not gpus or not asked or resources.get("mem_mb_per_cpu"):
        return
    offloaded = host_bytes_per_node(trainer_ranks(subject), gpus) // 2**20 if subject.architecture else 0
    needed = offloaded + gpus * MIB_PER_PROCESS
    if int(asked) < needed:
        why = (
            f"a node runs {gpus} processes with a GPU, each of which holds {MIB_PER_PROCESS} MiB and more, "
            f"and {offloaded} MiB are offloaded to the host (resources of train_grpo)"
        )
        yield Finding("resources.mem_mb", asked, why, (needed,))


def gpus_in(gres: str) -> int:
    """GPUs in a generic resource of Slurm: `gpu`, `gpu:8`, `gpu:a800:8`, `gpu:a800:8,nvme:1`."""
    found = 0
    for part in gres.split(","):
        name, *rest = part.split("(")[0].split(":")
        if name == "gpu":
            found += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return found


def _gpus_of_a_node(subject: Subject) -> int:
    """The most GPUs that a node of the job uses; 0 on CPUs, and where there is no placement."""
    if subject.config.cluster.device != "cuda":
        return 0
    try:
        return placement_of(subject.config).gpus_per_node
    except PlanError:
        return 0
