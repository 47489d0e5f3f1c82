"""What the stage probe_nodes found on the nodes of the cluster: results/shared/probe/ID/probe.json.

{"nodes": [{"host", "python", "versions": {package: version}, "imports": {module: error},
            "libraries": {"libcudnn": [files], "libcublas": ..., "libnccl": ...},
            "cuda": {"available", "torch", "driver", "driver_cuda", "cudnn", "nccl"},
            "gpus": [{"name", "capability", "bytes"}], "kernels": {name: {"error", "seconds"}},
            "shm_bytes", "ports": {"first", "free", "of"}, "canary",
            "network": {"backend", "nodes", "error", "gb_per_second"} or null}, ...]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpoflow.config import Config
from grpoflow.config.identity import digest
from grpoflow.facts.installed import installed_packages
from grpoflow.files import read_json
from grpoflow.plan.inputs import placement_of
from grpoflow.plan.problem import PlanError

DIRECTORY = Path("results/shared/probe")
MOST_NODES = 2
"""The network between two nodes stands for that between all."""


def probe_nodes_of(config: Config) -> int:
    """How many nodes are probed."""
    try:
        return min(MOST_NODES, len(placement_of(config).nodes))
    except PlanError:
        return 1


def probe_id(config: Config) -> str | None:
    """What the result of a probe depends on; None where `cluster.probe` is off. An environment in which
    something was installed is another one."""
    cluster = config.cluster
    if not cluster.probe:
        return None
    packages = installed_packages(cluster.environment)
    machines = cluster.model_dump(
        include={"device", "environment", "gpu", "gpus_per_node", "env", "first_port"}
    )
    return digest({**machines, "packages": packages, "nodes": probe_nodes_of(config)})


def probe_path(config: Config) -> Path | None:
    """The file of the probe; None where `cluster.probe` is off."""
    identity = probe_id(config)
    return DIRECTORY / identity / "probe.json" if identity else None


def probed(config: Config) -> dict[str, Any] | None:
    """What was found, or None where nothing was probed yet."""
    path = probe_path(config)
    if path is None or not path.is_file():
        return None
    found: dict[str, Any] = read_json(path)
    return found


@dataclass(frozen=True)
class Node:
    """What checks ask about a probed node; what its probe does not say is empty.

    Attributes:
        packages: Versions by name of the distribution.
        cudnn: Directories in which a program finds a cuDNN.
        compute_capability: That of its first GPU.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    cudnn: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None


def probed_node(config: Config) -> Node:
    """The first probed node, or one of which nothing is known."""
    try:
        found = probed(config)
    except (OSError, ValueError):
        found = None
    nodes = found.get("nodes") if isinstance(found, dict) else None
    return node_of(nodes[0]) if isinstance(nodes, list) and nodes else Node()


def node_of(node: Any) -> Node:
    """Read a node as probe.json has it: every field may be absent."""
    facts = node if isinstance(node, dict) else {}
    versions, libraries, gpus = (facts.get(name) for name in ("versions", "libraries", "gpus"))
    files = libraries.get("libcudnn") if isinstance(libraries, dict) else None
    gpu = gpus[0] if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict) else {}
    capability = re.fullmatch(r"(\d+)\.(\d+)", str(gpu.get("capability")))
    return Node(
        packages={str(name): str(version) for name, version in versions.items()}
        if isinstance(versions, dict)
        else {},
        cudnn=tuple(sorted({str(Path(str(file)).parent) for file in files}))
        if isinstance(files, list)
        else (),
        compute_capability=(int(capability[1]), int(capability[2])) if capability else None,
    )
