"""The programs of one node in one attempt: rollout servers and trainer, as the placement says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from grpoflow.commands.base import Command
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.environment import clean_environment
from grpoflow.commands.rollout import rollout
from grpoflow.commands.train import Server, TrainPaths, train
from grpoflow.files import read_json
from grpoflow.plan.inputs import parallel_of
from grpoflow.plan.placement import RolloutRole, TrainerRole

from .gpus import visible_gpus
from .process import Program, start
from .run import Attempt, Launch, RunDirectory


@dataclass
class Roles:
    """The roles of one node. What depends on the other nodes is known once they have joined the attempt."""

    run: RunDirectory
    launch: Launch
    attempt: Attempt
    node: int
    programs: dict[str, Program] = field(default_factory=dict)

    @property
    def servers(self) -> list[RolloutRole]:
        roles = self.launch.placement.nodes[self.node].roles
        return [role for role in roles if isinstance(role, RolloutRole)]

    @property
    def trainers(self) -> list[TrainerRole]:
        roles = self.launch.placement.nodes[self.node].roles
        return [role for role in roles if isinstance(role, TrainerRole)]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What node 0 decided for this attempt."""
        found: dict[str, Any] = read_json(self.attempt.facts)
        return found

    @property
    def logs(self) -> Path:
        return Path(self.facts["logs"])

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def port(self, offset: int) -> int:
        base: int = self.facts["port_base"]
        return base + offset

    def own_ports(self) -> list[int]:
        """The ports on which programs of this node will listen."""
        offsets = [port for role in self.servers for port in (role.http_port_offset, role.group_port_offset)]
        if self.node == self.launch.placement.master_node:
            offsets.append(self.launch.placement.master_port_offset)
        return [self.port(offset) for offset in offsets]

    def all_servers(self) -> list[Server]:
        """Every rollout server of the job, as the trainer reaches it."""
        return [
            Server(
                host=self.address_of(node),
                port=self.port(role.http_port_offset),
                group_port=self.port(role.group_port_offset),
            )
            for node, role in self.launch.placement.rollout_servers
        ]

    def address_of(self, node: int) -> str:
        return str(read_json(self.attempt.node(node))["address"])

    def start(self) -> None:
        """Start all programs of this node at once: the trainer waits for the servers when it needs them
        (grpoflow.training_env.late_client)."""
        for server in self.servers:
            self._start_server(server)
        for trainer in self.trainers:
            self._start_trainer(trainer)

    def stop(self) -> None:
        """End all of them, and everything below them."""
        for program in self.programs.values():
            program.tell()
        for program in self.programs.values():
            program.stop()

    def _start_server(self, role: RolloutRole) -> None:
        command = rollout(self.launch.config, self.launch.start, self.port(role.http_port_offset), role.dp)
        # no VLLM_PORT: swift takes VLLM_DP_MASTER_PORT from it (pipelines/infer/rollout.py:655,789), and
        # vLLM 0.23 then looks for ever for a port outside the ten from there (utils/network_utils.py:159)
        self._start(role.name, command, self._devices(role.gpus))

    def _start_trainer(self, role: TrainerRole) -> None:
        placement = self.launch.placement
        resume_from = self.facts["resume_from"]
        ranks = Ranks(
            nproc_per_node=role.nproc_per_node,
            nnodes=len(placement.trainers),
            node_rank=role.node_rank,
            master_addr=self.address_of(placement.master_node),
            master_port=self.port(placement.master_port_offset),
        )
        paths = TrainPaths(
            start=self.launch.start,
            mcore=self.launch.mcore,
            dataset=self.launch.dataset,
            output=self.run.output,
            resume_from=Path(resume_from) if resume_from else None,
        )
        parallel = parallel_of(self.launch.config, ranks.world_size)
        command = train(self.launch.config, paths, ranks, parallel, self.all_servers())
        told = {
            # for the training callback (grpoflow.training_env.walltime)
            "GRPOFLOW_DEADLINE": str(self.attempt.deadline),
            "GRPOFLOW_STOPPED": str(self.attempt.stopped),
            # one run in the trackers over all attempts: without an id each attempt would open another
            "WANDB_RUN_ID": self.run.path.name,
            "WANDB_RESUME": "allow",
            "SWANLAB_RUN_ID": self.run.path.name,
            "SWANLAB_RESUME": "allow",
        }
        self._start(role.name, command, {**self._devices(role.gpus), **told})

    def _start(self, name: str, command: Command, environment: Mapping[str, str]) -> None:
        base = clean_environment(self.launch.config, os.environ)
        # compiled kernels: on the shared filesystem all ranks of all nodes would wait for its locks
        base.setdefault("TRITON_CACHE_DIR", f"/tmp/grpoflow-triton-{os.getuid()}")
        whole = Command(command.argv, {**command.env, **environment})
        self.programs[name] = start(name, whole, base, self.log(name))
        print(f"started {name}: {json.dumps(command.argv)}", file=sys.stderr, flush=True)

    def _devices(self, gpus: tuple[int, ...]) -> dict[str, str]:
        """GPUs of a role, counted among those that Slurm gave to this job on this node."""
        if self.launch.config.cluster.device == "cpu":
            return {}
        visible = visible_gpus(os.environ) or [str(gpu) for gpu in range(max(gpus) + 1)]
        return {"CUDA_VISIBLE_DEVICES": ",".join(visible[gpu] for gpu in gpus)}
