"""Section `cluster`: the machines. Partition, account, qos and wall-time live in the Snakemake profile."""

from __future__ import annotations

from typing import Literal

from .base import Section, execution


class ClusterConfig(Section):
    device: Literal["cuda", "cpu"] = execution("cuda")
    """`cpu` runs the real programs on the stand-ins of envs/cpu, for tests and the tiny default only."""

    environment: str = execution()
    """Prefix of the Python environment that holds ms-swift, megatron-core and vLLM (`bin/swift` is in it)."""

    ms_swift: str = execution("4.6.0")
    """Version of ms-swift in the environment: arguments and rules are checked against this release."""

    gpu: str = execution("A800-SXM4-80GB")
    """GPU of a node, by its memory and speed: of one that the plan has no data of, the one whose memory comes
    nearest and is not more."""

    gpus_per_node: int = execution(8, gt=0, le=64)
    """GPUs of a node. On `device: cpu` they are worker slots."""

    host_memory_gib: int | None = execution(None, gt=0)
    """Host memory of a node in GiB, for what is offloaded from the GPUs; unknown by default."""

    probe: bool = execution(False)
    """Look at one node, or two and the network between them, in a short job before anything else: versions,
    driver, kernels, shared memory, shared filesystem, ports (results/shared/probe)."""

    cache: str = execution(".cache")
    """Directory on the shared filesystem for the data-set caches of ms-swift (MODELSCOPE_CACHE)."""

    first_port: int = execution(20000, ge=1024, le=60000)
    """Lowest port used; each job takes a block above it that follows from its job id."""

    env: dict[str, str] = execution({})
    """Extra environment of every program, e.g. NCCL_SOCKET_IFNAME. Never secrets: those come from the
    environment of the person who runs Snakemake."""
