"""What the supervision relies on in `swift rollout` and `megatron rlhf`, checked on the real programs (marker
`real`) and on their stand-in: routes, ports, files, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grpoflow.checkpoints import CheckpointError, check_run_checkpoint, newest_checkpoint
from grpoflow.commands.base import Command
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.environment import clean_environment
from grpoflow.commands.rollout import rollout
from grpoflow.commands.train import Server, TrainPaths, train
from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.launch.guard import descendants
from grpoflow.launch.health import check_completion, engines, health, is_healthy
from grpoflow.launch.ports import free_port
from grpoflow.launch.process import Program, start, tail
from grpoflow.launch.processes import process_start
from grpoflow.metrics import read_steps
from scene import Scene

STEPS = 4
SMALL = {"trainer": {"train_steps": STEPS, "save_steps": 2, "global_batch_size": 16, "micro_batch_size": 2}}


@dataclass
class Stage:
    """The programs of one kind, with a rollout server that all tests of the module share."""

    scene: Scene
    directory: Path
    config: Config
    seconds: float
    server: Server
    program: Program

    def start(self, name: str, command: Command, **more: str) -> Program:
        base = clean_environment(self.config, os.environ) | more
        return start(name, command, base, self.directory / f"{name}.log")

    def rollout(self, name: str, port: int) -> Program:
        return self.start(name, rollout(self.config, self.scene.model, port, 1))

    def train(self, name: str, resume_from: Path | None = None, **more: str) -> Program:
        paths = TrainPaths(self.scene.model, None, self.scene.dataset, self.output, resume_from)
        ranks = Ranks(master_port=free_port())
        return self.start(name, train(self.config, paths, ranks, Parallel(), [self.server]), **more)

    @property
    def output(self) -> Path:
        return self.directory / "output"

    def wait(self, ready: Callable[[], Any], program: Program) -> None:
        deadline = time.monotonic() + self.seconds
        while not ready():
            assert program.poll() is None, "\n".join(tail(program.log))
            assert time.monotonic() < deadline, "\n".join(tail(program.log))
            time.sleep(0.05)

    def end(self, program: Program) -> int:
        deadline = time.monotonic() + self.seconds
        while (code := program.poll()) is None:
            assert time.monotonic() < deadline, "\n".join(tail(program.log))
            time.sleep(0.05)
        return code


@pytest.fixture(scope="module", params=["standin", pytest.param("real", marks=pytest.mark.real)])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp(request.param)
    real = request.param == "real"
    scene = Scene(directory, real=real)
    port = free_port()
    server = Server("127.0.0.1", port, free_port())
    found = Stage(scene, directory, scene.config(SMALL), 240.0 if real else 20.0, server, None)  # type: ignore[arg-type]
    found.program = found.rollout("rollout", port)
    assert not is_healthy("127.0.0.1", port)
    found.wait(lambda: is_healthy("127.0.0.1", port), found.program)
    yield found
    found.program.stop()


def request(port: int, route: str, body: Any = None, seconds: float = 60.0) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}/{route}", data, headers), timeout=seconds
    ) as answer:
        return json.load(answer)


def test_routes(stage: Stage) -> None:
    port = stage.server.port
    assert request(port, "health") == request(port, "health/") == {"status": "ok"}
    assert request(port, "get_world_size/") == {"world_size": 1}
    assert request(port, "get_engine_type/", {})["engine_type"] == "LLMEngine"
    assert "message" in request(port, "reset_prefix_cache/", {})
    assert check_completion("127.0.0.1", port, "Add 1 and 2.").strip()
    with pytest.raises(urllib.error.HTTPError) as wrong:
        request(port, "v1/models")
    assert wrong.value.code == 404


def test_a_taken_port_makes_the_server_move(stage: Stage) -> None:
    """So a `/health` at another port than the wanted one is not ours, and no error tells."""
    program = stage.rollout("second", stage.server.port)
    stage.wait(lambda: "Uvicorn running on" in program.log.read_text(errors="replace"), program)
    assert f":{stage.server.port} (" not in program.log.read_text(errors="replace")
    processes = descendants(program.guard.pid)
    assert len(processes) >= 3  # the command line program, the server, its engine
    program.stop()
    assert not any(map(process_start, processes))


def test_an_unknown_argument_is_refused(stage: Stage) -> None:
    paths = TrainPaths(stage.scene.model, None, stage.scene.dataset, stage.directory / "never")
    ranks = Ranks(master_port=free_port())
    command = train(stage.config, paths, ranks, Parallel(), [stage.server])
    program = stage.start("unknown", Command((*command.argv, "--no_such_argument", "1"), command.env))
    assert stage.end(program) == 1
    assert "remaining_argv: ['--no_such_argument'" in program.log.read_text(errors="replace")


def test_training_stops_saves_and_resumes(stage: Stage) -> None:
    """The whole life of a trainer: told to stop, resumed, killed, resumed again, complete."""
    output, log = stage.output, stage.output / "logging.jsonl"
    deadline, stopped = stage.directory / "deadline.json", stage.directory / "stopped.json"
    deadline.write_text(json.dumps({"end": time.time(), "margin": 10}))

    first = stage.train("first", GRPOFLOW_DEADLINE=str(deadline), GRPOFLOW_STOPPED=str(stopped))
    assert stage.end(first) == 0, "\n".join(tail(first.log))
    assert json.loads(stopped.read_text()) == {"step": 1}
    assert [(step["step"], step["max_steps"]) for step in read_steps(log)] == [(1, STEPS)]
    newest = newest_checkpoint(output)
    assert newest is not None
    assert newest.step == 1
    assert (output / "last-checkpoint").readlink() == Path("checkpoint-1")
    assert json.loads((output / "args.json").read_text())

    second = stage.train("second_half", newest.path)
    rank = rank_of(stage, second)
    stage.wait(lambda: len(read_steps(log)) >= 2, second)
    os.kill(rank(), signal.SIGKILL)
    assert stage.end(second) == 1
    assert "exitcode  : -9" in second.log.read_text(errors="replace")

    newest = newest_checkpoint(output)
    assert newest is not None
    third = stage.train("third", newest.path)
    assert stage.end(third) == 0, "\n".join(tail(third.log))
    steps = read_steps(log)
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert {"loss", "reward", "grad_norm", "completions/mean_length"} <= steps[-1].keys()
    last = json.loads(log.read_text().splitlines()[-1])
    assert Path(last["last_model_checkpoint"]).name == f"checkpoint-{STEPS}"
    newest = newest_checkpoint(output)
    assert newest is not None
    assert newest.step == STEPS
    # save_total_limit
    assert sorted(path.name for path in output.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]


def rank_of(stage: Stage, program: Program) -> Callable[[], int]:
    """The process that trains: the only leaf below the guard that has the output directory in its line."""

    def find() -> int:
        lines = {
            pid: Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            for pid in descendants(program.guard.pid)
        }
        return max(pid for pid, line in lines.items() if str(stage.output) in line)

    return find


@pytest.mark.parametrize("pattern", ["iter_*/__0_1.distcp", "*.safetensors", "iter_*/common.pt"])
def test_a_cut_file_makes_a_checkpoint_incomplete(stage: Stage, pattern: str) -> None:
    path = stage.output / f"checkpoint-{STEPS}"
    check_run_checkpoint(path)
    file = next(path.glob(pattern))
    content = file.read_bytes()
    try:
        file.write_bytes(content[:-1])
        with pytest.raises(CheckpointError, match=file.name):
            check_run_checkpoint(path)
        assert (newest := newest_checkpoint(stage.output)) is not None
        assert newest.step == 2
    finally:
        file.write_bytes(content)


def test_a_server_without_its_engine_does_not_complete(stage: Stage) -> None:
    """It lives on, says nothing of its loss, and answers with an error or not at all."""
    port, guard = stage.server.port, stage.program.guard.pid
    found = engines(guard)
    assert found
    os.kill(min(found), signal.SIGKILL)
    with pytest.raises((urllib.error.HTTPError, TimeoutError)):
        request(
            port, "infer/", {"infer_requests": [{"messages": [{"role": "user", "content": "1 + 1"}]}]}, 15
        )
    assert health("127.0.0.1", port) in ("well", "busy")
    assert stage.program.poll() is None


def test_the_end_of_the_server_leaves_nothing(stage: Stage) -> None:
    processes = descendants(stage.program.guard.pid)
    stage.program.stop()
    assert not any(map(process_start, processes))
    assert health("127.0.0.1", stage.server.port) == "gone"
