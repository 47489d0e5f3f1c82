"""Stage probe_nodes: a short look at the nodes on which everything else will run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from grpoflow.commands.base import Command
from grpoflow.commands.distributed import ranks_of_nodes, torchrun_environment
from grpoflow.config import Config
from grpoflow.files import read_json
from grpoflow.launch.ports import free_port
from grpoflow.preflight.probed import probe_nodes_of

from .attempt import attempt_directory
from .base import Stage, StageFailed, finish
from .inside import inside

SHARED_MEMORY = 1 << 30
"""Bytes of /dev/shm below which vLLM's workers and data loaders end with a bus error."""
FREE_PORTS = 64


def probe_nodes(stage: Stage) -> None:
    """Look at one node, or at two and the network between them, and write probe.json.

    Raises:
        StageFailed: something is wrong with a node; the message has all of it. Nothing is written then, so
            that the next start looks again.
        ProgramFailed, GangFailed: the probe itself did not run.
    """
    config, nodes = stage.config, probe_nodes_of(stage.config)
    with attempt_directory(stage) as work:
        seen = (work / "nodes").absolute()
        seen.mkdir()
        probe = inside(stage, "probe", seen, str(config.cluster.first_port))
        commands = [
            Command(probe.argv, {**probe.env, **torchrun_environment(ranks)})
            for ranks in ranks_of_nodes(1, nodes, free_port())
        ]
        stage.run("probe", commands)
        found = [read_json(seen / f"{node}.json") for node in range(nodes)]
        (stage.logs / "nodes.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
        problems = list(problems_of(config, found))
        if problems:
            listed = "\n".join(f"  {problem}" for problem in problems)
            raise StageFailed(f"the nodes are not fit for this ({stage.logs / 'nodes.json'}):\n{listed}")
        first = found[0]
        gpus = f", {len(first['gpus'])} x {first['gpus'][0]['name']}" if first["gpus"] else ""
        link = first["network"]
        speed = f", {link['backend']} {link['gb_per_second']:.3g} GB/s" if link else ""
        stage.say(f"{', '.join(node['host'] for node in found)}{gpus}{speed}")
        finish(stage, work, nodes=found)


def problems_of(config: Config, nodes: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with probed nodes, each with what to do about it."""
    for node in nodes:
        for problem in _of_node(config, node):
            yield f"{node['host']}: {problem}"
    for name in sorted({name for node in nodes for name in node["versions"]}):
        found = {node["host"]: node["versions"].get(name, "none") for node in nodes}
        if len(set(found.values())) > 1:
            yield f"{name} differs: {found}; every node must see the same cluster.environment"


def _of_node(config: Config, node: dict[str, Any]) -> Iterator[str]:
    for module, error in node["imports"].items():
        yield f"{module} cannot be imported: {error}"
    if node["canary"]:
        yield f"{node['canary']}; results must lie on a filesystem that all nodes share"
    if node["shm_bytes"] < SHARED_MEMORY:
        yield f"/dev/shm has {node['shm_bytes'] / 2**20:.0f} MiB free; mount it with 1 GiB or more"
    if node["ports"]["free"] < FREE_PORTS:
        ports = node["ports"]
        few = f"only {ports['free']} of {ports['of']} ports from {ports['first']} on are free"
        yield f"{few}: change cluster.first_port"
    if "cuda" not in node:
        yield "torch cannot be used: is cluster.environment the right one?"
        return
    if config.cluster.device == "cuda":
        yield from _of_gpus(config, node)
    for name, result in node["kernels"].items():
        if result["error"]:
            yield f"the kernel {name} fails: {result['error']}"
    if node["network"] and node["network"]["error"]:
        link = node["network"]
        yield (
            f"{link['backend']} between the nodes fails: {link['error']}; see NCCL_SOCKET_IFNAME and "
            "NCCL_IB_HCA in cluster.env"
        )


def _of_gpus(config: Config, node: dict[str, Any]) -> Iterator[str]:
    cuda, gpus = node["cuda"], node["gpus"]
    if not cuda["available"]:
        yield (
            f"torch sees no GPU: it is built for CUDA {cuda['torch']}, driver {cuda['driver']} runs up to "
            f"{cuda['driver_cuda']}; does the rule ask for GPUs (gres)?"
        )
        return
    if len(gpus) < config.cluster.gpus_per_node:
        wanted = config.cluster.gpus_per_node
        yield f"{len(gpus)} GPUs, cluster.gpus_per_node says {wanted}; see gres of the rule"
    wrong = {gpu["name"] for gpu in gpus} - {config.cluster.gpu.removeprefix("NVIDIA ")}
    if wrong:
        names = ", ".join(sorted(wrong))
        yield f"it has {names}, cluster.gpu says {config.cluster.gpu}: memory and time are estimated for that"
