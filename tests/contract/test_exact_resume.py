"""A GRPO run that was killed and resumed is the run that was not: `megatron rlhf` on the CPU, with a rollout
in which nothing is random."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from grpoflow.checkpoints import newest_checkpoint
from grpoflow.commands.base import Command
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.environment import clean_environment
from grpoflow.commands.train import Server, TrainPaths, train
from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.launch.guard import descendants
from grpoflow.launch.ports import free_port
from grpoflow.launch.process import Program, start, tail
from grpoflow.metrics import read_steps
from scene import Scene

pytestmark = pytest.mark.real

K = 4
STANDIN = Path(__file__).resolve().parents[1] / "standin"
SETTINGS = {
    "trainer": {
        **{"train_steps": 2 * K, "save_steps": K, "save_total_limit": 4},
        **{"global_batch_size": 16, "micro_batch_size": 2, "steps_per_generation": 2},
        "beta": 0.04,
        "args": {
            "external_plugins": [str(STANDIN / name) for name in ("reward_of_text.py", "pure_rollout.py")],
            "lr_decay_style": "cosine",
        },
    }
}
SECONDS = 300.0
STATE = """
import json, sys
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
import torch, hashlib
reader = FileSystemReader(sys.argv[1])
found = {}
for name, item in reader.read_metadata().state_dict_metadata.items():
    if hasattr(item, "size"):
        tensor = torch.empty(item.size, dtype=item.properties.dtype)
        dcp.load_state_dict({name: tensor}, reader, no_dist=True)
        found[name] = hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
common = torch.load(sys.argv[1] + "/common.pt", weights_only=False)
state = {"scheduler": str(common["opt_param_scheduler"]), "iteration": common["iteration"]}
print(json.dumps({"tensors": found, **state}))
"""


class Trainer:
    """`megatron rlhf` in a directory."""

    def __init__(self, scene: Scene, config: Config, output: Path):
        self.scene, self.config, self.output = scene, config, output
        self.log = output / "logging.jsonl"

    def start(self, name: str, resume_from: Path | None = None) -> Program:
        paths = TrainPaths(self.scene.model, None, self.scene.dataset, self.output, resume_from)
        server = [Server("127.0.0.1", 1, 2)]
        command = train(self.config, paths, Ranks(master_port=free_port()), Parallel(), server)
        base = clean_environment(self.config, os.environ)
        return start(name, command, base, self.output.with_name(f"{self.output.name}-{name}.log"))

    def end(self, program: Program) -> None:
        wait(lambda: program.poll() is not None, program)
        assert program.poll() == 0, "\n".join(tail(program.log))

    def prompts(self) -> list[list[str]]:
        """Of every rollout, in order."""
        return [
            json.loads(line)["prompt"]
            for line in (self.output / "completions.jsonl").read_text().splitlines()
        ]


def wait(ready: Any, program: Program) -> None:
    deadline = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < deadline, "\n".join(tail(program.log))
        time.sleep(0.05)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("exact"), real=True)


@pytest.fixture(scope="module")
def runs(scene: Scene) -> tuple[Trainer, Trainer]:
    """A run of 2k steps, and one that was killed after its checkpoint of step k and resumed."""
    config = scene.config(SETTINGS)
    whole = Trainer(scene, config, scene.directory / "whole")
    whole.end(whole.start("whole"))

    killed = Trainer(scene, config, scene.directory / "killed")
    first = killed.start("first")
    wait(lambda: len(read_steps(killed.log)) > K or first.poll() is not None, first)
    for pid in descendants(first.guard.pid):
        os.kill(pid, signal.SIGKILL)
    wait(lambda: first.poll() is not None, first)
    newest = newest_checkpoint(killed.output)
    assert newest is not None, "\n".join(tail(first.log))
    assert newest.step == K
    killed.end(killed.start("second", newest.path))
    return whole, killed


def last_steps(trainer: Trainer) -> list[dict[str, Any]]:
    """The records of the steps after k."""
    timing = ("elapsed_time", "remaining_time", "train_speed(s/it)", "memory(GiB)")
    steps = [step for step in read_steps(trainer.log) if step["step"] > K]
    return [{name: value for name, value in step.items() if name not in timing} for step in steps]


def test_losses_rewards_and_learning_rates_are_equal(runs: tuple[Trainer, Trainer]) -> None:
    """To the last digit of the log: eight decimals."""
    whole, killed = (last_steps(trainer) for trainer in runs)
    assert [step["step"] for step in whole] == list(range(K + 1, 2 * K + 1))
    assert {"loss", "reward", "grad_norm", "learning_rate", "kl"} <= whole[0].keys()
    assert killed == whole
    assert len({step["grad_norm"] for step in whole}) == K  # it does learn
    assert whole[0]["learning_rate"] != whole[-1]["learning_rate"]


def test_prompts_come_in_the_same_order(runs: tuple[Trainer, Trainer]) -> None:
    whole, killed = (trainer.prompts() for trainer in runs)
    rollouts = K // 2
    assert len(whole) == 2 * rollouts
    assert len({tuple(prompts) for prompts in whole}) == 2 * rollouts
    assert killed[-rollouts:] == whole[-rollouts:]
    assert killed[:rollouts] == whole[:rollouts]


def test_the_same_state_is_saved(runs: tuple[Trainer, Trainer], scene: Scene) -> None:
    """Weights, optimizer and scheduler, tensor by tensor."""
    states = []
    for trainer in runs:
        checkpoint = trainer.output / f"checkpoint-{2 * K}"
        (shards,) = checkpoint.glob("iter_*")
        program = scene.environment / "bin/python"
        log = trainer.output.with_name(f"{trainer.output.name}-state.log")
        argv = (str(program), "-c", STATE, str(shards))
        reading = start("state", Command(argv, {}), clean_environment(trainer.config, os.environ), log)
        trainer.end(reading)
        states.append(json.loads(log.read_text().splitlines()[-1]))
    whole, killed = states
    assert whole["iteration"] == killed["iteration"] == 2 * K
    assert whole["scheduler"] == killed["scheduler"]
    assert any("exp_avg_sq" in name for name in whole["tensors"])
    assert killed["tensors"] == whole["tensors"]
    weights = [
        hashlib.sha256((t.output / f"checkpoint-{2 * K}/model.safetensors").read_bytes()) for t in runs
    ]
    assert weights[0].hexdigest() == weights[1].hexdigest()
