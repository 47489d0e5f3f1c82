"""Problems of the plan, in the keys of the configuration."""

from __future__ import annotations

from math import gcd, lcm

from grpoflow.plan.problem import Problem, nearest_multiples

from .report import Level
from .rules import Finding
from .subject import Subject

PARALLEL = {
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "context_parallel_size": "context",
    "expert_model_parallel_size": "expert",
    "expert_tensor_parallel_size": "expert_tensor",
}
KEYS = {
    "vllm_tp": "rollout.tensor_parallel_size",
    "vllm_tensor_parallel_size": "rollout.tensor_parallel_size",
    "vllm_max_num_seqs": "rollout.max_num_seqs",
    "kv_cache_memory_bytes": "rollout.engine_args.kv_cache_memory_bytes",
    "trainer_gpus": "trainer.gpus",
    "rollout_gpus": "rollout.gpus",
    "trainer_nodes": "trainer.nodes",
    "rollout_nodes": "rollout.nodes",
    "gpus_per_node": "cluster.gpus_per_node",
    "val_prompts": "data.val",
}
OF_THE_SECTION = (
    "global_batch_size",
    "micro_batch_size",
    "num_generations",
    "save_steps",
    "steps_per_generation",
)


def finding(problem: Problem, subject: Subject, section: str, rule: str | None = None) -> Finding:
    """Translate a problem of the plan; `section` is "trainer" or "sft"."""
    level: Level = "refuse" if problem.severity == "error" else "warn"
    key, value, legal, why = problem.key, problem.value, problem.legal, problem.why
    if key == "world_size":
        key, value, legal, why = _nodes(problem, subject, section)
    elif key in PARALLEL:
        key = f"{section}.parallel.{PARALLEL[key]}"
    elif key in OF_THE_SECTION:
        key = f"{section}.{key}"
    elif key in KEYS:
        key = KEYS[key]
        if key in ("trainer.gpus", "rollout.gpus"):
            value, legal = _count(value), tuple(_count(item) for item in legal)
            why = f"a node has {subject.config.cluster.gpus_per_node} GPUs (cluster.gpus_per_node)"
    elif "." not in key:
        key = f"{section}.args.{key}"
    own = "counts_are_positive" if problem.id.startswith("positive_") else problem.id
    return Finding(key, value, why, legal, level, rule or own)


def _nodes(problem: Problem, subject: Subject, section: str) -> tuple[str, object, tuple[object, ...], str]:
    """A rule about the number of ranks is a rule about nodes, or about the GPUs of the one shared node."""
    config = subject.config
    ranks = subject.world_size if section == "trainer" else subject.sft_world_size
    nodes = config.trainer.nodes if section == "trainer" or config.sft is None else config.sft.nodes
    per_node = max(1, ranks // nodes)
    why = f"{ranks} ranks {problem.why}"
    if section == "trainer" and config.rollout.mode == "server" and config.rollout.nodes == 0:
        legal: tuple[object, ...] = tuple(
            size for size in problem.legal if isinstance(size, int) and size < config.cluster.gpus_per_node
        )
        return "trainer.gpus", per_node, legal, why
    unit = gcd(*(size for size in problem.legal if isinstance(size, int)))
    return f"{section}.nodes", nodes, nearest_multiples(nodes, lcm(unit, per_node) // per_node), why


def _count(value: object) -> object:
    return len(value) if isinstance(value, tuple) else value
