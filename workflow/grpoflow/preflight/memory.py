"""Whether trainer and rollout fit in GPU and host memory."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from math import ceil
from pathlib import Path

from grpoflow.plan.auto import MEMORY_SHARE
from grpoflow.plan.hardware import GIB, GPUS
from grpoflow.plan.inputs import vllm_spec
from grpoflow.plan.memory import VLLM_WORKSPACE, RankMemory, host_bytes_per_node, vllm_weight_bytes

from .estimate import rollout_memory, sft_ranks, trainer_ranks
from .from_plan import finding
from .report import Level
from .rules import Finding, rule, rules
from .subject import Subject

TIGHT_SHARE = 0.86
"""Above it a warning. An example that ms-swift ships for such GPUs (qwen3_5/packing.sh) fills 85 %."""

COLOCATE_LIMIT = 0.9


@rule(evidence="workflow/grpoflow/plan/hardware.py")
def gpu_is_known(subject: Subject) -> Iterator[Finding]:
    """Protects from a workflow without a plan: how many GPUs hold the weights follows from their memory."""
    cluster = subject.config.cluster
    if cluster.device == "cuda" and subject.gpu is None:
        near = difflib.get_close_matches(cluster.gpu, GPUS, n=len(GPUS), cutoff=0.5)
        why = "no data of this GPU; name the one whose memory comes nearest and is not more"
        yield Finding("cluster.gpu", cluster.gpu, why, tuple(dict.fromkeys((*near, *GPUS))))


@rule(evidence="models/architecture.py", level="warn")
def model_is_known(subject: Subject) -> Iterator[Finding]:
    """Protects from trusting a plan that knows nothing about the model."""
    if subject.hf_config and subject.architecture is None and not subject.broken_model:
        why = f"{subject.no_architecture}: layout and memory are not checked"
        yield Finding("model.path", subject.config.model.path, why, ("a Qwen3.5 checkpoint",))


@rule(
    evidence="Megatron-LM megatron/training/theoretical_memory_usage.py, "
    "swift megatron/trainers/rlhf_mixin.py:31, ms-swift#8295",
    needs="architecture",
)
def training_fits(subject: Subject) -> Iterator[Finding]:
    """Protects from CUDA out of memory in the trainer, the reference copy of GRPO included."""
    yield from _fits(subject, trainer_ranks(subject), "trainer")


@rule(
    evidence="Megatron-LM megatron/training/theoretical_memory_usage.py, ms-swift#8295", needs="architecture"
)
def sft_fits(subject: Subject) -> Iterator[Finding]:
    """Protects from CUDA out of memory in the SFT stage."""
    yield from _fits(subject, sft_ranks(subject), "sft")


def _fits(subject: Subject, ranks: list[RankMemory], section: str) -> Iterator[Finding]:
    gpu = subject.gpu
    if gpu is None or not ranks:
        return
    fullest = max(ranks, key=lambda rank: rank.peak)
    share = fullest.peak / gpu.memory
    if share <= TIGHT_SHARE:
        return
    held = [item for item in fullest.items if item.where == "gpu" and fullest.peak_phase in item.phases]
    largest = sorted(held, key=lambda item: -item.bytes)[:4]
    items = ", ".join(f"{item.name} {item.bytes / GIB:.1f}" for item in largest)
    limit = gpu.memory * (1 if section_is_swift(subject, section) else MEMORY_SHARE)
    why = (
        f"{fullest.role} needs about {fullest.peak / GIB:.1f} of {gpu.memory / GIB:.1f} GiB in the "
        f"{fullest.peak_phase} phase ({items} GiB); the estimate is a lower bound"
    )
    level: Level = "refuse" if fullest.peak > limit else "warn"
    yield Finding(f"{section}.parallel", str(_layout(subject, section)), why, helps(subject, section), level)


def section_is_swift(subject: Subject, section: str) -> bool:
    """Whether the section trains with the swift backend. Its activations are freed block by block and seen
    to run at 78 of 80 GB (ms-swift#8145): only what exceeds the whole GPU is refused."""
    config = subject.config
    tuner = config.sft if section == "sft" else config.trainer
    return tuner is not None and tuner.backend == "swift"


def _layout(subject: Subject, section: str) -> object:
    layout = subject.sft_layout if section == "sft" else subject.layout
    if section_is_swift(subject, section):
        tuner = subject.config.sft if section == "sft" else subject.config.trainer
        return tuner.deepspeed if tuner is not None else None
    return layout.spec


def helps(subject: Subject, section: str) -> tuple[str, ...]:
    """What makes a trainer smaller, as keys with values."""
    tuner = subject.config.sft if section == "sft" else subject.config.trainer
    if tuner is None:
        return ()
    found = []
    if tuner.recompute != "full":
        found.append(f"{section}.recompute: full")
    if tuner.backend == "megatron":
        if tuner.tuner == "full" and not tuner.optimizer_cpu_offload:
            found.append(f"{section}.optimizer_cpu_offload: true")
        if tuner.parallel != "auto":
            found.append(f"{section}.parallel: auto")
    elif tuner.deepspeed != "zero3":
        found.append(f"{section}.deepspeed: zero3")
    if tuner.micro_batch_size > 1:
        found.append(f"{section}.micro_batch_size: 1")
    if tuner.tuner == "full":
        found.append(f"{section}.tuner: lora")
    rollout = subject.config.rollout
    shared = section == "trainer" and rollout.mode == "server" and rollout.nodes == 0
    if not shared and (tuner.backend == "megatron" or tuner.deepspeed != "none"):
        found.append(f"{section}.nodes: {2 * tuner.nodes}")
    return tuple(found)


@rules(
    {
        "vllm_weights_fit": (
            "'No available memory for the cache blocks', or for one sequence, when the server starts",
            "vllm#18124, vllm#26884, vllm 0.23.0 v1/core/kv_cache_utils.py:719-744",
        ),
        "vllm_states_fit": (
            "'max_num_seqs exceeds available Mamba cache blocks' when the server starts",
            "vllm#49064, vllm 0.23.0 config/compilation.py:1452-1468",
        ),
        "model_fits_a_rollout_node": (
            "a model that no rollout server of one node can hold: `swift rollout` spans no nodes",
            "swift arguments/deploy_args.py:131-152, ms-swift#9344",
        ),
    },
    needs="architecture",
)
def engine_fits(subject: Subject) -> Iterator[Finding]:
    """The budget of a vLLM rank."""
    arch, gpu, memory = subject.architecture, subject.gpu, rollout_memory(subject)
    if arch is None or gpu is None or memory is None:
        return
    config = subject.config
    per_node = config.cluster.gpus_per_node
    largest = max((tp for tp in (1, 2, 4, 8, 16) if tp <= per_node), default=1)
    smallest = vllm_weight_bytes(arch, largest) + VLLM_WORKSPACE
    if config.rollout.mode == "server" and smallest > gpu.memory:
        why = (
            f"{vllm_weight_bytes(arch, 1) / GIB:.0f} GiB of weights do not fit in the {per_node} x "
            f"{gpu.memory / GIB:.0f} GiB of a node, and a rollout server cannot span nodes"
        )
        legal = (f"colocate with rollout.tensor_parallel_size: {2 * largest}",)
        yield Finding("rollout.mode", "server", why, legal, rule="model_fits_a_rollout_node")
        return
    for problem in memory.problems:
        yield finding(problem, subject, "trainer")


@rule(evidence="vllm#18124", level="refuse")
def weights_fit_by_their_size(subject: Subject) -> Iterator[Finding]:
    """Protects from an engine too small for its weights, where only the size of the checkpoint is known."""
    gpu, config = subject.gpu, subject.config
    if gpu is None or subject.architecture is not None:
        return
    index = Path(config.model.path) / "model.safetensors.index.json"
    try:
        total = json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    spec = vllm_spec(config)
    budget = spec.gpu_memory_utilization * gpu.memory
    if isinstance(total, int) and total / spec.tp > budget:
        why = (
            f"{total / GIB:.0f} GiB of weights / {spec.tp} exceed {spec.gpu_memory_utilization:.2f} x "
            f"{gpu.memory / GIB:.1f} GiB"
        )
        legal = tuple(tp for tp in (2, 4, 8, 16) if total / tp < budget)
        yield Finding("rollout.tensor_parallel_size", spec.tp, why, legal)


@rule(evidence="ms-swift#4594, ms-swift#5615")
def colocated_engine_leaves_room(subject: Subject) -> Iterator[Finding]:
    """Protects from out of memory when vLLM wakes beside the trainer."""
    rollout = subject.config.rollout
    if rollout.mode == "colocate" and rollout.gpu_memory_utilization >= COLOCATE_LIMIT:
        why = "vLLM would take the memory that the trainer still holds while it generates"
        yield Finding("rollout.gpu_memory_utilization", rollout.gpu_memory_utilization, why, (0.5, 0.4))


@rule(
    evidence="swift megatron/trainers/utils.py:98, mcore cpu_offloading", level="warn", needs="architecture"
)
def host_memory_holds_what_is_offloaded(subject: Subject) -> Iterator[Finding]:
    """Protects from a node that runs out of host memory: the kernel kills a rank without a message."""
    config = subject.config
    limit = config.cluster.host_memory_gib
    sections: Iterable[tuple[str, list[RankMemory], int]] = (
        ("trainer", trainer_ranks(subject), config.trainer.gpus or config.cluster.gpus_per_node),
        ("sft", sft_ranks(subject), config.cluster.gpus_per_node),
    )
    for section, ranks, per_node in sections:
        needed = host_bytes_per_node(ranks, per_node) / GIB
        if limit is not None and needed > TIGHT_SHARE * limit:
            tuner = config.sft if section == "sft" and config.sft else config.trainer
            enough = ceil(tuner.nodes * needed / (TIGHT_SHARE * limit))
            why = (
                f"what the {section} offloads takes about {needed:.0f} GiB of pinned memory per node, and "
                f"{1 - TIGHT_SHARE:.0%} should stay free: the kernel kills a rank when it runs out"
            )
            yield Finding("cluster.host_memory_gib", limit, why, (f"{section}.nodes: {enough}",))
