"""What runs on each node of the RL allocation: the roles of that node, supervised.

Every task of the job calls `run_node`. The nodes agree through files in the run directory (which the shared
filesystem must show to all of them: a node that does not appear in time ends the attempt). One dead role ends
the attempt on every node at once: a trainer that lost its server waits in a collective for up to ddp_timeout,
18,000,000 seconds in ms-swift.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpoflow.checkpoints import newest_checkpoint, set_aside_incomplete
from grpoflow.commands.base import Command
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.environment import clean_environment
from grpoflow.commands.rollout import rollout as rollout_command
from grpoflow.commands.train import Server, TrainPaths, train
from grpoflow.files import new_log_directory, read_json, write_json
from grpoflow.plan.inputs import parallel_of
from grpoflow.plan.placement import RolloutRole, TrainerRole

from .completion import TrainingIncomplete, verify_training
from .health import ServerUnwell, check_completion, is_healthy
from .ports import NoFreePorts, is_free, port_block
from .process import Program, log_excerpt, start
from .run import Attempt, Launch, RunDirectory

POLL_SECONDS = 0.5
NODES_SECONDS = 300.0


class AttemptEnded(Exception):
    """This node has nothing more to do: the attempt has an end, written by this node or another."""


@dataclass(frozen=True)
class Task:
    """Which task of which job this process is."""

    job_id: str
    restart: int
    node: int
    address: str

    @property
    def key(self) -> str:
        return f"{self.job_id}.{self.restart}"


def this_task(environment: Mapping[str, str]) -> Task:
    """Read the task from what Slurm or submitit's local executor set."""
    if "SUBMITIT_LOCAL_JOB_ID" in environment:
        return Task(environment["SUBMITIT_LOCAL_JOB_ID"], 0, 0, "127.0.0.1")
    return Task(
        job_id=environment["SLURM_JOB_ID"],
        restart=int(environment.get("SLURM_RESTART_COUNT", "0")),
        node=int(environment["SLURM_NODEID"]),
        address=node_address(environment["SLURMD_NODENAME"]),
    )


def node_address(name: str) -> str:
    """The address under which Slurm itself reaches a node; host names need not resolve everywhere."""
    shown = subprocess.run(
        ["scontrol", "show", "node", name, "--oneliner"], capture_output=True, text=True, check=True
    ).stdout
    fields = dict(part.split("=", 1) for part in shown.split() if "=" in part)
    return fields.get("NodeAddr", name)


def run_node(run_path: str) -> str:
    """Run this node's roles until the attempt ends; return `complete`, `failed` or `cancelled`."""
    run = RunDirectory(Path(run_path))
    task = this_task(os.environ)
    node = Node(run, Launch.read(run.launch), task, run.attempt(task.key))
    # submitit ignores SIGTERM (scancel, preemption); its USR2 handler would count a time-out
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, node.cancel)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    return node.work()


@dataclass
class Node:
    """One node of one attempt."""

    run: RunDirectory
    launch: Launch
    task: Task
    attempt: Attempt
    programs: dict[str, Program] = field(default_factory=dict)
    cancelled: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)

    def cancel(self, number: int, _: object) -> None:
        # a signal handler only takes a note: writing files here could interrupt a write half done
        self.cancelled = signal.Signals(number).name

    def work(self) -> str:
        try:
            self._work()
        except AttemptEnded:
            pass
        except Exception as error:
            self.attempt.finish("failed", f"node {self.task.node}: {error!r}")
            raise
        finally:
            for program in self.programs.values():
                program.stop()
        end = read_json(self.attempt.end)
        self._tell(state=end["status"], cause=end["cause"])
        status: str = end["status"]
        return status

    def _work(self) -> None:
        self._join()
        self.facts = read_json(self.attempt.facts)
        roles = self.launch.placement.nodes[self.task.node].roles
        for role in roles:
            if isinstance(role, RolloutRole):
                self._serve(role)
        servers = self._wait_for_servers()
        self._tell(state="servers ready", servers=[vars(server) for server in servers])
        for role in roles:
            if isinstance(role, TrainerRole):
                self._train(role, servers)
        while True:
            self._check()
            self._collect()
            time.sleep(POLL_SECONDS)

    # bring-up

    def _join(self) -> None:
        """Publish this node, wait for all others; node 0 opens the attempt."""
        host = {"host": socket.gethostname(), "address": self.task.address}
        write_json(self.attempt.node(self.task.node), host)
        if self.task.node == 0:
            self._open()
        count = len(self.launch.placement.nodes)
        self._wait(
            lambda: (
                self.attempt.facts.is_file() and all(self.attempt.node(i).is_file() for i in range(count))
            ),
            NODES_SECONDS,
            "not every node of the job sees the run directory: is it on the shared filesystem?",
        )

    def _open(self) -> None:
        placement, cluster = self.launch.placement, self.launch.config.cluster
        try:
            base = port_block(int(self.task.job_id), placement.port_block_size, cluster.first_port)
        except NoFreePorts as error:
            self._end("failed", str(error))
        newest = newest_checkpoint(self.run.output)
        aside = set_aside_incomplete(self.run.output, newest)
        facts = {
            "logs": str(new_log_directory(self.launch.logs)),
            "port_base": base,
            "resume_from": newest and str(newest.path),
            "resume_step": newest.step if newest else 0,
            "set_aside": [str(path) for path in aside],
            "started": time.time(),
        }
        write_json(self.attempt.facts, facts)
        self._tell(state="starting", **facts)

    def _serve(self, role: RolloutRole) -> None:
        """Start a rollout server and wait until it answers on exactly its port."""
        config, port = self.launch.config, self._port(role.http_port_offset)
        for number in (port, self._port(role.group_port_offset)):
            if not is_free(number):
                self._end("failed", f"{role.name}: port {number} is taken on {socket.gethostname()}")
        command = rollout_command(config, self.launch.start, port, role.dp)
        environment = self._devices(role.gpus)
        if role.dp == 1:  # several engines would scan upwards from the same port and collide
            environment["VLLM_PORT"] = str(self._port(role.vllm_port_offset))
        self._start(role.name, command.argv, {**command.env, **environment})
        self._wait(
            lambda: is_healthy("127.0.0.1", port),
            config.rollout.startup_timeout,
            f"{role.name} is not healthy on port {port}",
            self._log(role.name),
        )
        server = {"host": self.task.address, "port": port, "group_port": self._port(role.group_port_offset)}
        write_json(self.attempt.ready(role.name), server)

    def _wait_for_servers(self) -> list[Server]:
        names = [role.name for _, role in self.launch.placement.rollout_servers]
        self._wait(
            lambda: all(self.attempt.ready(name).is_file() for name in names),
            self.launch.config.rollout.startup_timeout,
            f"not all rollout servers became ready: {', '.join(names)}",
        )
        servers = [Server(**read_json(self.attempt.ready(name))) for name in names]
        if self.task.node == self.launch.placement.sync_client_node:
            for server in servers:
                self._check_server(server)
        return servers

    def _check_server(self, server: Server) -> None:
        """Check a server from the node that will talk to it."""
        if not is_healthy(server.host, server.port):
            self._end(
                "failed", f"http://{server.host}:{server.port}/health/ cannot be reached from the trainer"
            )
        try:
            text = check_completion(server.host, server.port, "Hello")
        except ServerUnwell as error:
            self._end("failed", str(error))
        print(f"{server.host}:{server.port} completes: {text!r}", flush=True)

    def _train(self, role: TrainerRole, servers: list[Server]) -> None:
        config, placement = self.launch.config, self.launch.placement
        resume_from = self.facts["resume_from"]
        ranks = Ranks(
            nproc_per_node=role.nproc_per_node,
            nnodes=len(placement.trainers),
            node_rank=role.node_rank,
            master_addr=read_json(self.attempt.node(placement.master_node))["address"],
            master_port=self._port(placement.master_port_offset),
        )
        paths = TrainPaths(
            start=self.launch.start,
            mcore=self.launch.mcore,
            dataset=self.launch.dataset,
            output=self.run.output,
            resume_from=Path(resume_from) if resume_from else None,
        )
        command = train(config, paths, ranks, parallel_of(config, ranks.world_size), servers)
        self._start(role.name, command.argv, {**command.env, **self._devices(role.gpus)})
        self._tell(state="training")

    # supervision

    def _collect(self) -> None:
        """Look at this node's programs; end the attempt when one has ended."""
        roles = {role.name: role for role in self.launch.placement.nodes[self.task.node].roles}
        for name, program in self.programs.items():
            code = program.poll()
            if code is None or self.attempt.done(name).is_file():
                continue
            if isinstance(roles[name], TrainerRole) and code == 0:
                write_json(self.attempt.done(name), {"code": code})
                continue
            self._end("failed", f"{name} ended with code {code}\n{log_excerpt(program.log)}")
        trainers = self.launch.placement.trainers
        is_master = self.task.node == self.launch.placement.master_node
        if is_master and all(self.attempt.done(role.name).is_file() for _, role in trainers):
            try:
                verify_training(self.launch.config, self.run.output)
            except TrainingIncomplete as error:
                self._end("failed", str(error))
            self._end("complete", "the trainer ended and its last checkpoint is complete")

    def _check(self) -> None:
        if self.cancelled:
            self._end("cancelled", f"node {self.task.node} received {self.cancelled}")
        if self.attempt.end.is_file():
            raise AttemptEnded

    def _end(self, status: str, cause: str) -> Any:
        self.attempt.finish(status, cause)
        raise AttemptEnded

    def _wait(self, ready: Callable[[], bool], seconds: float, why: str, log: Path | None = None) -> None:
        """Wait for something, while every program of this node lives and nobody ended the attempt."""
        deadline = time.monotonic() + seconds
        while not ready():
            self._check()
            self._collect()
            if time.monotonic() > deadline:
                excerpt = f"\n{log_excerpt(log)}" if log else ""
                self._end("failed", f"{why} (waited {seconds:.0f} s){excerpt}")
            time.sleep(POLL_SECONDS)

    # small things

    def _start(self, name: str, argv: tuple[str, ...], environment: Mapping[str, str]) -> None:
        base = clean_environment(self.launch.config, os.environ)
        self.programs[name] = start(name, Command(argv, environment), base, self._log(name))
        print(f"started {name}: {json.dumps(argv)}", file=sys.stderr, flush=True)

    def _log(self, name: str) -> Path:
        return Path(self.facts["logs"]) / f"{name}.log"

    def _port(self, offset: int) -> int:
        base: int = self.facts["port_base"]
        return base + offset

    def _devices(self, gpus: tuple[int, ...]) -> dict[str, str]:
        """GPUs of a role, counted among those that Slurm gave to this job on this node."""
        if self.launch.config.cluster.device == "cpu":
            return {}
        given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        visible = given.split(",") if given else [str(gpu) for gpu in range(max(gpus) + 1)]
        return {"CUDA_VISIBLE_DEVICES": ",".join(visible[gpu] for gpu in gpus)}

    def _tell(self, **facts: Any) -> None:
        """Update allocation.json, which drivers and `grpoflow status` read. Node 0 speaks for all."""
        if self.task.node == 0:
            self.told |= facts
            write_json(
                self.run.allocation, {"job_id": self.task.job_id, "attempt": self.task.key, **self.told}
            )
