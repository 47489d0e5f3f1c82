"""How many ranks of `swift infer` complete the held-out prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpoflow.config import Config


@dataclass(frozen=True)
class Inference:
    """Ranks of `swift infer`, the GPUs that they use of each node, and copies of the model on one node."""

    nodes: int = 1
    nproc_per_node: int = 1
    gpus_per_node: int = 0
    copies: int = 1


def inference_of(config: Config) -> Inference:
    """The copies of the model that one node holds, or the fewest nodes that hold one.

    Ranks share the prompts in groups of `rollout.tensor_parallel_size` (swift/pipelines/infer/infer.py,
    _batch_infer); vLLM then takes them as they were started (external_launcher), whatever node they are on,
    as in colocate training. A single copy within a node splits itself, and so does one of transformers.
    """
    cluster, size = config.cluster, config.rollout.tensor_parallel_size
    if cluster.device == "cpu":
        return Inference()
    if config.evaluate.engine != "vllm":
        return Inference(gpus_per_node=cluster.gpus_per_node)
    if size > cluster.gpus_per_node:
        ranks = math.lcm(size, cluster.gpus_per_node)
        return Inference(ranks // cluster.gpus_per_node, cluster.gpus_per_node, cluster.gpus_per_node)
    copies = cluster.gpus_per_node // size
    return Inference(1, copies * size if copies > 1 else 1, copies * size, copies)
