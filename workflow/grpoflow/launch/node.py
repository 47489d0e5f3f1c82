"""What runs on each node of the RL allocation: the roles of that node, supervised.

Every task of the job calls `run_node`. The nodes agree through files in the run directory, which the shared
filesystem must show to all of them: a node that does not appear in time ends the attempt. One dead role ends
the attempt on every node at once: a trainer that lost its server waits in a collective for up to ddp_timeout,
18,000,000 seconds in ms-swift. Then the first living node decides what follows (grpoflow.launch.verdict).
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpoflow.checkpoints import set_aside_incomplete
from grpoflow.commands.train import Server
from grpoflow.files import create_once, new_log_directory, read_json, write_json
from grpoflow.gates import judge_completions

from . import slurm
from .background import Background
from .beats import SILENT_SECONDS, Heartbeats
from .completion import TrainingIncomplete, verify_training
from .deadline import DeadlineKeeper, end_of_signalled_job
from .explain import explain
from .gpus import gpus_of_run, take_gpus
from .health import ServerUnwell, check_completion, engines, health, is_healthy, listens
from .leftovers import sweep
from .links import Listener, links, reach
from .memory import oom_kills
from .ports import NoFreePorts, is_free, port_block
from .process import how_it_ended, tail_text
from .processes import process_start
from .quality import (
    Quality,
    accepted_checkpoint,
    judge_what_was_left,
    refusal,
    refuse,
    set_aside_refused,
)
from .resume import layout_of
from .roles import Roles
from .run import Attempt, Launch, RunDirectory, Status
from .space import checkpoint_size, missing_space, next_save
from .task import Task, this_task
from .verdict import Verdict, judge
from .watch import Progress

POLL_SECONDS = 0.5
NODES_SECONDS = 300.0
LINK_SECONDS = 60.0
BEAT_SECONDS = 5.0
HEALTH_SECONDS = 10.0
PROGRESS_SECONDS = 2.0
SUSPICION_SECONDS = 60.0
LEAVE_SECONDS = 120.0
RESERVED_BYTES = 1 << 20
DEAD_ANSWERS = 3
UVICORN = re.compile(r"Uvicorn running on http://\S+:(\d+) ")


class AttemptEnded(Exception):
    """This node has nothing more to do: the attempt has an end, written by this node or another."""


def run_node(run_path: str) -> str:
    """Run this node's roles, attempt after attempt; return how the last one ended."""
    run = RunDirectory(Path(run_path))
    task = this_task(os.environ)
    signals: list[int] = []
    # submitit ignores SIGTERM (scancel, preemption); its USR2 handler would count a time-out. A handler only
    # takes a note: writing files here could interrupt a write half done
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    while not task.is_slurm and run.attempt(task.key).path.exists():
        task = task.next()  # the number of the process was another job's before, of the last boot perhaps
    while True:
        attempt, launch = run.attempt(task.key), Launch.read(run.launch)
        node = Node(run, launch, task, attempt, signals, Roles(run, launch, attempt, task.node))
        status = node.work()
        verdict = node.part()
        if verdict is None or not verdict.goes_on:
            return status
        if verdict.action == "requeue" and task.is_slurm:
            node.requeue()
            return status
        task = task.next()


@dataclass
class Node:
    """One node of one attempt."""

    run: RunDirectory
    launch: Launch
    task: Task
    attempt: Attempt
    signals: list[int]
    roles: Roles
    told: dict[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    quality: Quality | None = None
    keeper: DeadlineKeeper | None = None
    beats: Heartbeats = field(init=False)
    refuses: bool = False
    """What this attempt produced was refused, by this node."""
    graceful: bool = False
    """Preempted, with time to save."""
    due: dict[str, float] = field(default_factory=dict)
    dead_answers: dict[str, int] = field(default_factory=dict)
    engines: dict[str, dict[int, str]] = field(default_factory=dict)
    gpus: ExitStack = field(default_factory=ExitStack)
    """Holds the GPUs of this machine, where Slurm does not."""
    oom_kills: int = field(default_factory=oom_kills)
    """Processes that the kernel had killed for memory before this attempt."""

    def __post_init__(self) -> None:
        self.beats = Heartbeats(self.attempt, self.task.node, len(self.nodes))

    @property
    def nodes(self) -> range:
        return range(len(self.launch.placement.nodes))

    @property
    def is_client(self) -> bool:
        """Whether the trainer on this node talks to the rollout servers and writes the log."""
        return self.task.node == self.launch.placement.sync_client_node

    def work(self) -> Status:
        """Run the roles until the attempt ends; return its status."""
        try:
            self._work()
        except AttemptEnded:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self.attempt.finish("failed", f"supervisor of node {self.task.node}: {error!r}")
                raise
            self.run.reserve.unlink(missing_ok=True)  # room for what is still to be written
            self.attempt.finish("failed", f"the disk is full: {error}", lasting=True)
        except Exception as error:
            self.attempt.finish("failed", f"supervisor of node {self.task.node}: {error!r}")
            raise
        finally:
            self.roles.stop()
            self.gpus.close()
            if self.keeper is not None:
                self.keeper.stop()
        end = read_json(self.attempt.end)
        self._tell(state=end["status"], cause=end["cause"])
        status: Status = end["status"]
        return status

    def _work(self) -> None:
        self._join()
        self._take_gpus()
        self._prepare()
        self._try_links()
        self._watch_training()
        self.roles.start()
        self._wait_for_servers()
        while True:
            self._check()
            time.sleep(POLL_SECONDS)

    # before any program starts

    def _join(self) -> None:
        """Publish this node, wait for all others; node 0 opens the attempt."""
        host = {"host": socket.gethostname(), "address": self.task.address}
        write_json(self.attempt.node(self.task.node), host)
        if self.task.node == 0:
            self._open()
        self._wait(
            lambda: self.attempt.facts.is_file() and all(self.attempt.node(i).is_file() for i in self.nodes),
            NODES_SECONDS,
            "not every node of the job sees the run directory: is it on the shared filesystem?",
        )

    def _open(self) -> None:
        """Node 0: choose the ports and the checkpoint, and say so to the others."""
        placement, cluster, key = self.launch.placement, self.launch.config.cluster, self.task.key
        seed = 16 * int(key.job) + key.restart + key.again
        try:
            base = port_block(seed, placement.port_block_size, cluster.first_port)
        except NoFreePorts as error:
            self._end("failed", str(error))
        self.run.reserve.write_bytes(bytes(RESERVED_BYTES))
        set_aside_refused(self.run)
        judge_what_was_left(self.run, self.launch, str(key))
        newest = accepted_checkpoint(self.run)
        aside = set_aside_incomplete(self.run.output, newest)
        facts = {
            "logs": str(new_log_directory(self.launch.logs)),
            "port_base": base,
            "resume_from": newest and str(newest.path),
            "resume_step": newest.step if newest else 0,
            "set_aside": [str(path) for path in aside],
            "layout": layout_of(self.launch.config, placement.trainer_world_size),
            "started": time.time(),
        }
        write_json(self.attempt.facts, facts)
        self._tell(state="starting", **facts)
        margin = self.launch.config.trainer.stop_margin
        self.keeper = DeadlineKeeper(self.attempt.deadline, key.job if self.task.is_slurm else None, margin)
        self.keeper.start()

    def _take_gpus(self) -> None:
        """Wait for the other runs on this machine, where Slurm does not make them wait."""
        if self.task.is_slurm:
            return
        wanted = gpus_of_run(self.launch.config, os.environ)
        while (mine := take_gpus(wanted)) is None:
            self._tell(state=f"waiting: another run has GPU {' or '.join(wanted)}")
            self._check()
            time.sleep(POLL_SECONDS)
        self.gpus = mine
        self._tell(state="starting")

    def _prepare(self) -> None:
        """Sweep what a former attempt left; check this node's ports."""
        former = {logs for logs in self.run.log_directories() if logs != str(self.roles.logs)}
        if found := sweep(former):
            print(f"killed {len(found)} processes of a former attempt: {found}", flush=True)
        for port in self.roles.own_ports():
            if not is_free(port):
                where = socket.gethostname()
                self._end("failed", f"port {port} is taken on {where} by another program", accident=True)

    def _try_links(self) -> None:
        """Try every connection between nodes that the programs will open."""
        wanted = links(self.launch.placement, self.roles.port(0))
        listener = Listener([*{link.port: None for link in wanted if link.server == self.task.node}])
        try:
            for link in wanted:
                if link.client != self.task.node:
                    continue
                host = self.roles.address_of(link.server)
                error = reach(host, link.port, time.monotonic() + LINK_SECONDS)
                if error:
                    here = socket.gethostname()
                    why = f"{host}:{link.port} cannot be reached from {here} ({link.purpose}): {error}"
                    self._end("failed", f"{why}; is there a firewall between the nodes?")
            self._meet(self.attempt.linked, "not every node could try its connections to the others")
        finally:
            listener.close()
        # a program of another node that started now would talk to the listener in place of its peer
        self._meet(self.attempt.cleared, "not every node is ready to start its programs")

    def _meet(self, place: Callable[[int], Path], why: str) -> None:
        """Wait until all nodes have come this far."""
        write_json(place(self.task.node), {})
        self._wait(lambda: all(place(index).is_file() for index in self.nodes), 2 * LINK_SECONDS, why)

    def _watch_training(self) -> None:
        """On the node that writes the log: look at the disk, and follow the log from here on."""
        if not self.is_client:
            return
        self.run.output.mkdir(parents=True, exist_ok=True)
        self.progress = Progress(
            self.run.log,
            stall_timeout=self.launch.config.trainer.stall_timeout,
            startup=self.launch.config.rollout.startup_timeout,
            started=time.monotonic(),
        )
        step = self.roles.facts["resume_step"]
        self.quality = Quality(self.run, self.launch, str(self.task.key), step)
        self._check_space(self.progress, step)

    # bring-up

    def _wait_for_servers(self) -> None:
        """Wait until the servers are healthy here, then all of them, tried from the trainer's node."""
        timeout = self.launch.config.rollout.startup_timeout
        for role in self.roles.servers:
            name, port = role.name, self.roles.port(role.http_port_offset)
            self._wait(
                lambda name=name, port=port: self._listens(name, port),  # type: ignore[misc]
                timeout,
                f"{name} is not healthy on port {port}",
            )
            self.engines[name] = engines(self.roles.programs[name].guard.pid)
            write_json(self.attempt.ready(name), {"after": time.time() - self.roles.facts["started"]})
        names = [role.name for _, role in self.launch.placement.rollout_servers]
        self._wait(
            lambda: all(self.attempt.ready(name).is_file() for name in names),
            timeout,
            f"not all rollout servers became ready: {', '.join(names)}",
        )
        servers = self.roles.all_servers()
        if self.is_client:
            for server in servers:
                self._try_server(server)
            write_json(self.attempt.serving, {})
        self._wait(self.attempt.serving.is_file, timeout, "the rollout servers were not tried in time")
        self._tell(state="training", servers=[vars(server) for server in servers])

    def _listens(self, name: str, port: int) -> bool:
        """Whether a server is healthy on its port; it may have moved to another one without an error, and
        whoever took its own may answer there."""
        other = UVICORN.search(tail_text(self.roles.log(name)))
        if other is not None and int(other[1]) != port:
            why = f"port {port} was taken meanwhile: {name} listens on {other[1]}"
            self._end("failed", why, accident=True)
        if not is_healthy("127.0.0.1", port):
            return False
        if not listens(self.roles.programs[name].guard.pid, port):
            why = f"port {port} was taken meanwhile: another program answers there, not {name}"
            self._end("failed", why, accident=True)
        return True

    def _try_server(self, server: Server) -> None:
        """Try a server from the node that will talk to it."""
        address = f"http://{server.host}:{server.port}"
        if health(server.host, server.port) == "gone":
            self._end("failed", f"{address}/health/ cannot be reached from the trainer's node")
        asked = Background(lambda: check_completion(server.host, server.port, "Hello"))
        while not asked.done:
            self._check()
            time.sleep(POLL_SECONDS)
        try:
            text = asked.result()
        except ServerUnwell as error:
            self._end("failed", str(error))
        print(f"{address} completes: {text!r}", flush=True)
        # one text alone: of a model that was not trained it may well be odd
        found = [finding for finding in judge_completions([text]) if finding.gate == "one symbol"]
        if found and self.launch.config.trainer.quality_gate == "stop":
            self._refuse(
                f"{address}/infer/ returned {text!r}: {refusal(found)}", self.roles.facts["resume_step"]
            )

    # supervision

    def _check(self) -> None:
        """Look at everything once; raises AttemptEnded when the attempt has an end."""
        if self.signals and not self.graceful:
            self._signalled()
        if self.attempt.end.is_file():
            raise AttemptEnded
        self._collect()
        if self._is_due("beat", BEAT_SECONDS) and (silent := self.beats.beat()):
            why = f"is silent for {SILENT_SECONDS:.0f} s"
            self._end("failed", f"the supervisor on {silent} {why}", accident=True)
        if self._is_due("health", HEALTH_SECONDS):
            self._check_health()
        if self.progress is not None and self._is_due("progress", PROGRESS_SECONDS):
            self._check_progress(self.progress)

    def _signalled(self) -> None:
        """SIGTERM: cancelled, preempted or out of time. Preempted with time to save, the training goes on to
        the next step boundary."""
        name = signal.Signals(self.signals[0]).name
        if not self.task.is_slurm:
            self._end("cancelled", f"received {name}")
        known = read_json(self.attempt.deadline)["end"] if self.attempt.deadline.is_file() else None
        told = end_of_signalled_job(self.task.key, known)
        if told.grace is not None and told.grace > self.launch.config.trainer.stop_margin:
            self.graceful = True
            if self.keeper is not None:  # node 0 writes the deadline
                self.keeper.stop_now()
            self._tell(state="preempted: saving")
            return
        self._end(told.status, f"node {self.task.node} received {name}: {told.why}")

    def _collect(self) -> None:
        """Look at this node's programs; end the attempt when one has ended."""
        trainers = {role.name for role in self.roles.trainers}
        for name, program in self.roles.programs.items():
            code = program.poll()
            if code is None or self.attempt.done(name).is_file():
                continue
            if name in trainers and code == 0:
                self._check_quality(last=True)
                write_json(self.attempt.done(name), {"code": code})
                continue
            self._fail(f"{name} {how_it_ended(code)}", program.log)
        names = [role.name for _, role in self.launch.placement.trainers]
        is_master = self.task.node == self.launch.placement.master_node
        if is_master and all(self.attempt.done(name).is_file() for name in names):
            self._trainers_ended()

    def _trainers_ended(self) -> None:
        """All trainers ended without an error: complete, or stopped before the end of the job."""
        if self.attempt.stopped.is_file():
            step = read_json(self.attempt.stopped)["step"]
            why = "the job was preempted" if self.graceful else "the wall-time of the job is near"
            self._end("preempted" if self.graceful else "stopped", f"saved checkpoint-{step}: {why}")
        try:
            verify_training(self.launch.config, self.run.output)
        except TrainingIncomplete as error:
            self._end("failed", f"the trainer ended without an error, but {error}", lasting=True)
        self._end("complete", "the trainer ended and its last checkpoint is complete")

    def _check_health(self) -> None:
        """A server process can live on without listening any more, and without the engine that generates: its
        requests then hang, and those of the trainer have no time-out."""
        for role in self.roles.servers:
            if not self.attempt.ready(role.name).is_file():
                continue
            log = self.roles.log(role.name)
            for pid, started in self.engines[role.name].items():
                if process_start(pid) != started:
                    self._fail(f"{role.name} lives, but its engine (process {pid}) has ended", log)
            port = self.roles.port(role.http_port_offset)
            dead = self.dead_answers.get(role.name, 0) + 1 if health("127.0.0.1", port) == "gone" else 0
            self.dead_answers[role.name] = dead
            if dead >= DEAD_ANSWERS:
                self._fail(f"{role.name} lives, but /health on port {port} does not", log)

    def _check_quality(self, *, last: bool = False) -> None:
        """Judge what was produced since the last look; a checkpoint of what is garbage does not count."""
        if self.quality is None:
            return
        found = self.quality.look(last=last)
        if found:
            self._refuse(refusal(found), self.quality.sound_step)

    def _refuse(self, why: str, sound_step: int) -> Any:
        """End the attempt for what it produced after this step."""
        self.refuses = True
        refuse(self.run, sound_step)
        self._end("failed", why, lasting=True)

    def _check_progress(self, progress: Progress) -> None:
        self._check_quality()
        now = time.monotonic()
        if progress.observe(now):
            self._check_space(progress, progress.step)
            return
        if any(self.attempt.done(role.name).is_file() for role in self.roles.trainers):
            return  # the trainer has ended: no more steps are due
        since = f"no new step for {progress.silence(now):.0f} s after step {progress.step}"
        if progress.is_stalled(now):
            bound = f"the bound is {progress.bound:.0f} s (trainer.stall_timeout)"
            self._fail(f"the training stands still: {since}; {bound}")
        if progress.is_suspicious(now) and self._is_due("suspicion", SUSPICION_SECONDS):
            cause = explain([self.roles.logs]).text
            if cause:
                self._end("failed", f"the training stands still: {since}\n{cause}")

    def _check_space(self, progress: Progress, step: int) -> None:
        """Look whether the next checkpoint fits, when it is due before the next line of the log, and at the
        start: a disk that is full now is full then too."""
        trainer = self.launch.config.trainer
        ahead = next_save(step, trainer.save_steps, progress.max_steps or 10**9) - step
        if step != self.roles.facts["resume_step"] and ahead > trainer.logging_steps:
            return
        needed = checkpoint_size(self.run, self.launch)
        missing = missing_space(self.run.output, needed)
        if missing:
            why = f"it needs {needed / 1e9:.3g} GB, {missing / 1e9:.3g} GB are missing"
            where = f"on the filesystem of {self.run.output}"
            self._end("failed", f"no space for the next checkpoint: {why} {where}", lasting=True)

    def _fail(self, what: str, log: Path | None = None) -> Any:
        """End the attempt with the first cause that the logs of all roles show."""
        killed = oom_kills() - self.oom_kills
        if killed:
            where = socket.gethostname()
            what += f"; on {where} the kernel killed {killed} of the job's processes: out of memory"
        found = explain([self.roles.logs], what, log)
        self._end("failed", found.text, accident=found.accident)

    def _end(self, status: Status, cause: str, *, lasting: bool = False, accident: bool = False) -> Any:
        self.attempt.finish(status, cause, lasting=lasting, accident=accident)
        raise AttemptEnded

    def _wait(self, ready: Callable[[], bool], seconds: float, why: str) -> None:
        """Wait for something, while every program of this node lives and nobody ended the attempt."""
        deadline = time.monotonic() + seconds
        while not ready():
            self._check()
            if time.monotonic() > deadline:
                text = f"{why} (waited {seconds:.0f} s)"
                self._fail(text) if self.attempt.facts.is_file() else self._end("failed", text)
            time.sleep(POLL_SECONDS)

    # after the end

    def part(self) -> Verdict | None:
        """Leave the attempt: the first living node decides what follows, when all programs have ended.

        Returns None when nobody decided in time.
        """
        write_json(self.attempt.left(self.task.node), {})
        deadline = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < deadline and self._living() != [*self.nodes]:
            time.sleep(POLL_SECONDS)
        if self.refuses:
            # the trainers of all nodes have ended: nobody writes to a checkpoint that is moved now
            set_aside_refused(self.run)
        if self.task.node == self._living()[0]:
            create_once(self.attempt.verdict, vars(self._judge()))
        while not self.attempt.verdict.is_file():
            if time.monotonic() > deadline + LEAVE_SECONDS:
                return None
            time.sleep(POLL_SECONDS)
        verdict = Verdict(**read_json(self.attempt.verdict))
        self._tell(verdict=verdict.action, why=verdict.why)
        return verdict

    def _living(self) -> list[int]:
        return [index for index in self.nodes if self.attempt.left(index).is_file()]

    def _judge(self) -> Verdict:
        verdict = judge(self.run, self.launch, self._jobs(), read_json(self.attempt.end))
        if verdict.action == "again" and self.task.is_slurm:
            # a try in this job needs all of its nodes, and time for more than loading
            needed = self.launch.config.trainer.stop_margin + self._startup_seconds()
            if self._living() != [*self.nodes] or (self.keeper and self.keeper.remaining() < needed):
                return replace(verdict, action="requeue")
        return verdict

    def _jobs(self) -> list[str]:
        """This job and those that it continues: the driver may not have recorded it yet."""
        jobs = self.run.jobs()
        return jobs if self.task.key.job in jobs else [self.task.key.job]

    def _startup_seconds(self) -> float:
        """How long this attempt took until its first step, as a measure of the next one."""
        if self.progress is None:
            return 0.0
        return (self.progress.first_step or time.monotonic()) - self.progress.started

    def requeue(self) -> None:
        """The first living node puts the job back into the queue, unless Slurm does so itself."""
        if self.task.node != self._living()[0]:
            return
        job = self.task.key.job
        try:
            facts = slurm.job_facts(job)
            if facts is not None and facts.restarts > self.task.key.restart:
                return  # Slurm requeued it: a preemption
            slurm.requeue(job)
        except (slurm.Refused, slurm.NoAnswer) as error:
            # the driver, if it lives, or the next one submits another job
            print(f"job {job} could not be requeued: {error}", flush=True)
            return
        time.sleep(LEAVE_SECONDS)  # the end of this job: a task that returned would look like its success

    # small things

    def _is_due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now < self.due.get(what, 0.0):
            return False
        self.due[what] = now + seconds
        return True

    def _tell(self, **facts: Any) -> None:
        """Update allocation.json, which drivers and `grpoflow status` read. Node 0 speaks for all."""
        if self.task.node == 0:
            self.told |= facts
            job = {"job_id": self.task.key.job, "attempt": str(self.task.key)}
            write_json(self.run.allocation, {**job, **self.told})
