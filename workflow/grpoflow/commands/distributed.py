"""The ranks of one distributed program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """Where one node stands in a distributed program (one process per GPU)."""

    nproc_per_node: int = 1
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29500

    @property
    def world_size(self) -> int:
        return self.nproc_per_node * self.nnodes


def ranks_of_nodes(
    nproc_per_node: int, nnodes: int, master_port: int, master_addr: str = "127.0.0.1"
) -> list[Ranks]:
    """One program's ranks, of each node. The launcher of several nodes puts the first node's name for the
    address."""
    return [Ranks(nproc_per_node, nnodes, node, master_addr, master_port) for node in range(nnodes)]


def torchrun_environment(ranks: Ranks) -> dict[str, str]:
    """ms-swift starts torchrun itself when it finds these variables (swift/cli/main.py:71-80)."""
    return {
        "NPROC_PER_NODE": str(ranks.nproc_per_node),
        "NNODES": str(ranks.nnodes),
        "NODE_RANK": str(ranks.node_rank),
        "MASTER_ADDR": ranks.master_addr,
        "MASTER_PORT": str(ranks.master_port),
    }
