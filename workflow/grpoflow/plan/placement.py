"""Which node and which GPUs hold which role of the RL allocation, decided before the job is submitted.

Three shapes exist:

- ``server``: nodes ``0..R-1`` run one `swift rollout` server each, nodes ``R..R+T-1`` run the trainer;
- ``split``: one node, the rollout server on some of its GPUs and the trainer on the others;
- ``colocate``: every node runs the trainer, which starts vLLM inside itself; there is no rollout server.

Node indices count the nodes of the allocation from 0; host names and the port base are only known at launch.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from grpoflow.plan.problem import PlanError, Problem, divisors, errors_of, nearest, nearest_multiples

Mode = Literal["server", "split", "colocate"]


@dataclass(frozen=True)
class PlacementSpec:
    """What the person asked for.

    Attributes:
        mode: ``server``, ``split`` or ``colocate``.
        gpus_per_node: GPUs of one node of the cluster.
        trainer_nodes: T, nodes with a trainer role.
        rollout_nodes: R, nodes with a rollout server of their own; 0 in ``split`` and ``colocate``.
        trainer_gpus: Local GPU indices the trainer uses on each of its nodes; None means all.
        rollout_gpus: Local GPU indices the rollout server uses on each of its nodes; None means all.
        vllm_tp: Tensor-parallel size of vLLM.
        vllm_dp: Data-parallel size of one server; None fills its GPUs. Must be None in ``colocate``.
    """

    mode: Mode
    gpus_per_node: int
    trainer_nodes: int = 1
    rollout_nodes: int = 0
    trainer_gpus: tuple[int, ...] | None = None
    rollout_gpus: tuple[int, ...] | None = None
    vllm_tp: int = 1
    vllm_dp: int | None = None

    @property
    def nodes(self) -> int:
        """Nodes of the allocation."""
        return self.trainer_nodes + self.rollout_nodes

    @property
    def trainer_device_ids(self) -> tuple[int, ...]:
        """Local GPU indices of the trainer on each of its nodes."""
        return tuple(range(self.gpus_per_node)) if self.trainer_gpus is None else self.trainer_gpus

    @property
    def rollout_device_ids(self) -> tuple[int, ...]:
        """Local GPU indices open to the rollout server on each of its nodes."""
        return tuple(range(self.gpus_per_node)) if self.rollout_gpus is None else self.rollout_gpus

    @property
    def trainer_world_size(self) -> int:
        """Number of trainer ranks."""
        return self.trainer_nodes * len(self.trainer_device_ids)


@dataclass(frozen=True)
class RolloutRole:
    """One `swift rollout` server: ``tp * dp`` GPUs of one node, because the server can neither span nodes nor
    pipeline (swift arguments/deploy_args.py:131-152).

    ``server_index`` is the position in the trainer's ``--vllm_server_host``/``--vllm_server_port`` lists. The
    offsets count from the base of the job's port block: HTTP, and the TCPStore of the weight-sync group
    (opened on the server's host). vLLM chooses its internal ports: with ``VLLM_PORT`` set, 0.23 never starts.
    """

    name: str
    gpus: tuple[int, ...]
    tp: int
    dp: int
    server_index: int
    http_port_offset: int
    group_port_offset: int
    kind: Literal["rollout"] = "rollout"


@dataclass(frozen=True)
class TrainerRole:
    """One torchrun of the trainer: ranks ``first_rank .. first_rank + nproc_per_node - 1``."""

    name: str
    gpus: tuple[int, ...]
    node_rank: int
    nproc_per_node: int
    first_rank: int
    kind: Literal["trainer"] = "trainer"

    @property
    def last_rank(self) -> int:
        """Highest global rank on this node."""
        return self.first_rank + self.nproc_per_node - 1


Role = RolloutRole | TrainerRole


@dataclass(frozen=True)
class NodePlacement:
    """The roles of one node of the allocation."""

    index: int
    roles: tuple[Role, ...]


@dataclass(frozen=True)
class Placement:
    """Roles of every node, and the layout of the job's port block (``port_block_size`` consecutive ports)."""

    mode: Mode
    nodes: tuple[NodePlacement, ...]
    master_port_offset: int
    port_block_size: int

    @property
    def gpus_per_node(self) -> int:
        """The most GPUs that the roles of one node use."""
        return max(1 + max(gpu for role in node.roles for gpu in role.gpus) for node in self.nodes)

    def _roles(self) -> Iterator[tuple[int, Role]]:
        return ((node.index, role) for node in self.nodes for role in node.roles)

    @property
    def rollout_servers(self) -> tuple[tuple[int, RolloutRole], ...]:
        """``(node index, role)`` of every rollout server, in the order of ``--vllm_server_host``."""
        return tuple((index, role) for index, role in self._roles() if isinstance(role, RolloutRole))

    @property
    def trainers(self) -> tuple[tuple[int, TrainerRole], ...]:
        """``(node index, role)`` of every trainer node, in the order of NODE_RANK."""
        return tuple((index, role) for index, role in self._roles() if isinstance(role, TrainerRole))

    @property
    def trainer_world_size(self) -> int:
        """WORLD_SIZE of the trainer."""
        return sum(role.nproc_per_node for _, role in self.trainers)

    @property
    def master_node(self) -> int:
        """Node that MASTER_ADDR names: the first trainer node, where NODE_RANK is 0."""
        return self.trainers[0][0]

    @property
    def sync_client_node(self) -> int:
        """Node whose last rank is the weight-sync client (swift megatron/pipelines/train/rlhf.py:58,
        ``is_last_rank``).

        Only this node talks to the rollout servers; their health must be tested from here.
        """
        return self.trainers[-1][0]

    def to_json(self) -> str:
        """Text that :meth:`from_json` reads back unchanged."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Placement":
        """Read the text of :meth:`to_json`.

        Raises:
            KeyError, TypeError: If the text was not written by :meth:`to_json` of this version or one that
                knew more.
        """
        data = json.loads(text)
        nodes = tuple(
            NodePlacement(node["index"], tuple(_role_from_dict(role) for role in node["roles"]))
            for node in data["nodes"]
        )
        return cls(**{**data, "nodes": nodes})


def _role_from_dict(data: dict[str, Any]) -> Role:
    role_class = {"rollout": RolloutRole, "trainer": TrainerRole}[data["kind"]]
    # a job outlives an upgrade: what an earlier version wrote besides is left out
    known = {field.name: data[field.name] for field in fields(role_class)}
    role: Role = role_class(**{**known, "gpus": tuple(data["gpus"])})
    return role


def check_placement(spec: PlacementSpec) -> list[Problem]:
    """All problems of a placement, without regard to the model (see :mod:`grpoflow.plan.layout` for that)."""
    problems = [
        Problem(f"positive_{key}", key, value, f"{key} must be at least 1", (1,))
        for key, value in (
            ("gpus_per_node", spec.gpus_per_node),
            ("trainer_nodes", spec.trainer_nodes),
            ("vllm_tp", spec.vllm_tp),
            ("vllm_dp", 1 if spec.vllm_dp is None else spec.vllm_dp),
        )
        if value < 1
    ]
    if problems:
        return problems
    problems += _check_nodes(spec)
    problems += _check_gpu_ids(spec, "trainer_gpus", spec.trainer_device_ids)
    if spec.mode == "colocate":
        return problems + _check_colocated_vllm(spec)
    problems += _check_gpu_ids(spec, "rollout_gpus", spec.rollout_device_ids)
    if spec.mode == "split":
        problems += _check_split_overlap(spec)
    return problems + _check_server_size(spec)


def _check_nodes(spec: PlacementSpec) -> list[Problem]:
    if spec.mode == "server" and spec.rollout_nodes < 1:
        why = "mode server gives every rollout server a node of its own; use mode split to share one node"
        return [Problem("server_needs_rollout_nodes", "rollout_nodes", spec.rollout_nodes, why, (1,))]
    if spec.mode != "server" and spec.rollout_nodes != 0:
        why = f"mode {spec.mode} has no node that only serves rollouts"
        return [Problem("no_rollout_nodes", "rollout_nodes", spec.rollout_nodes, why, (0,))]
    if spec.mode == "split" and spec.trainer_nodes != 1:
        why = "mode split divides the GPUs of exactly one node; with more nodes use mode server"
        return [Problem("split_is_one_node", "trainer_nodes", spec.trainer_nodes, why, (1,))]
    return []


def _check_gpu_ids(spec: PlacementSpec, key: str, gpus: tuple[int, ...]) -> list[Problem]:
    unknown = sorted({gpu for gpu in gpus if not 0 <= gpu < spec.gpus_per_node})
    if not gpus or unknown or len(set(gpus)) != len(gpus):
        legal = tuple(gpu for gpu in dict.fromkeys(gpus) if gpu not in unknown) or tuple(
            range(spec.gpus_per_node)
        )
        why = f"must name distinct GPUs out of 0..{spec.gpus_per_node - 1}"
        return [Problem(f"valid_{key}", key, gpus, why, (legal,))]
    return []


def _check_split_overlap(spec: PlacementSpec) -> list[Problem]:
    shared = set(spec.trainer_device_ids) & set(spec.rollout_device_ids)
    if not shared:
        return []
    # The side that was left at "all GPUs" is the one to repair; the trainer's if both were named.
    key, taken = (
        ("rollout_gpus", spec.trainer_device_ids)
        if spec.rollout_gpus is None and spec.trainer_gpus is not None
        else ("trainer_gpus", spec.rollout_device_ids)
    )
    free = tuple(gpu for gpu in range(spec.gpus_per_node) if gpu not in taken)
    why = (
        f"GPUs {sorted(shared)} are given to the trainer and to the rollout server; vLLM takes its share of "
        "the memory first and the trainer runs out of it"
    )
    value = getattr(spec, key)
    return [Problem("split_gpus_disjoint", key, value, why, (free,) if free else ())]


def _check_colocated_vllm(spec: PlacementSpec) -> list[Problem]:
    problems = []
    world_size = spec.trainer_world_size
    if spec.vllm_dp is not None:
        why = "in mode colocate the data-parallel size of vLLM follows from world size / vllm_tp"
        problems.append(Problem("colocate_has_no_vllm_dp", "vllm_dp", spec.vllm_dp, why, (None,)))
    if world_size and world_size % spec.vllm_tp:
        why = f"must divide the {world_size} trainer ranks (swift megatron/trainers/rollout_mixin.py:413-416)"
        legal = nearest(spec.vllm_tp, divisors(world_size))
        problems.append(Problem("colocate_vllm_tp_divides_world", "vllm_tp", spec.vllm_tp, why, legal))
    return problems


def _check_server_size(spec: PlacementSpec) -> list[Problem]:
    gpus = len(spec.rollout_device_ids)
    if spec.vllm_tp > gpus:
        why = (
            f"a rollout server has {gpus} GPUs and cannot span nodes or use pipeline parallelism (swift "
            "arguments/deploy_args.py:131-152)"
        )
        return [
            Problem(
                "server_fits_its_gpus", "vllm_tp", spec.vllm_tp, why, nearest(spec.vllm_tp, divisors(gpus))
            )
        ]
    fill = gpus // spec.vllm_tp
    dp = fill if spec.vllm_dp is None else spec.vllm_dp
    if spec.vllm_tp * dp > gpus:
        why = f"{spec.vllm_tp} x {dp} GPUs wanted, the server has {gpus}"
        return [Problem("server_fits_its_gpus", "vllm_dp", dp, why, (fill,))]
    if spec.vllm_tp * dp < gpus:
        why = f"{gpus - spec.vllm_tp * dp} of the {gpus} GPUs of the rollout server stay idle"
        if spec.vllm_dp is None:
            legal = nearest(spec.vllm_tp, divisors(gpus))
            return [Problem("server_uses_its_gpus", "vllm_tp", spec.vllm_tp, why, legal, "warning")]
        return [Problem("server_uses_its_gpus", "vllm_dp", dp, why, nearest_multiples(fill, fill), "warning")]
    return []


def place(spec: PlacementSpec) -> Placement:
    """Assign roles, ranks and port offsets.

    Port block: ``master, http 0..S-1, group 0..S-1`` for S rollout servers.
    Every offset is used once in the block even across nodes, so that all roles may share one host.

    Raises:
        PlanError: With all errors of :func:`check_placement`.
    """
    errors = errors_of(check_placement(spec))
    if errors:
        raise PlanError(errors)
    servers = {"server": spec.rollout_nodes, "split": 1, "colocate": 0}[spec.mode]
    nodes = []
    for index in range(spec.nodes):
        roles: list[Role] = []
        if index < servers:
            roles.append(_rollout_role(spec, index, servers))
        if index >= spec.rollout_nodes:
            roles.append(_trainer_role(spec, index - spec.rollout_nodes))
        nodes.append(NodePlacement(index, tuple(roles)))
    return Placement(
        mode=spec.mode,
        nodes=tuple(nodes),
        master_port_offset=0,
        port_block_size=1 + 2 * servers,
    )


def _rollout_role(spec: PlacementSpec, server_index: int, servers: int) -> RolloutRole:
    gpus = spec.rollout_device_ids
    dp = len(gpus) // spec.vllm_tp if spec.vllm_dp is None else spec.vllm_dp
    return RolloutRole(
        name=f"rollout{server_index}",
        gpus=gpus[: spec.vllm_tp * dp],
        tp=spec.vllm_tp,
        dp=dp,
        server_index=server_index,
        http_port_offset=1 + server_index,
        group_port_offset=1 + servers + server_index,
    )


def _trainer_role(spec: PlacementSpec, node_rank: int) -> TrainerRole:
    gpus = spec.trainer_device_ids
    return TrainerRole(
        name=f"trainer{node_rank}",
        gpus=gpus,
        node_rank=node_rank,
        nproc_per_node=len(gpus),
        first_rank=node_rank * len(gpus),
    )
