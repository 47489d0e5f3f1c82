"""Short real runs of what the default does not use: swift backend, LoRA, MoE, text-only checkpoints."""

from __future__ import annotations

import pytest
from workspace import Workspace, left_processes, make_workspace

pytestmark = pytest.mark.real

# a model that has learned nothing gets no reward for sums, and without a difference there is no gradient
PLUGIN = """
from swift.rewards import ORM, orms


class Length(ORM):
    def __call__(self, completions, **kwargs):
        return [len(completion) % 7 / 7 for completion in completions]


orms["length"] = Length
"""
EXPERIMENTS = """
sft: null
data: {reward_examples: null}
rewards: {plugin: length.py, functions: [length], weights: null}
trainer: {train_steps: 2, save_steps: 2, quality_gate: warn}
experiments:
  swift_lora:
    trainer: {backend: swift, tuner: lora}
  swift_text:
    model: {path: resources/demo/text}
    trainer: {backend: swift}
  megatron_lora:
    trainer: {tuner: lora}
  megatron_moe:
    model: {path: resources/demo/moe_vlm}
"""
NAMES = ("swift_lora", "swift_text", "megatron_lora", "megatron_moe")


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_workspace(tmp_path_factory.mktemp("matrix"))
    workspace.write("length.py", PLUGIN)
    overlay = workspace.write("matrix.yaml", EXPERIMENTS)
    workspace.snakemake("--configfile", "config/config.yaml", overlay, "--until", "train_grpo")
    return workspace


@pytest.mark.parametrize("name", NAMES)
def test_trains_to_the_last_step(matrix: Workspace, name: str) -> None:
    train = matrix.json(f"results/{name}/train.json")
    assert train["step"] == 2
    log = (matrix.path / f"logs/{name}/train_grpo/latest/trainer0.log").read_text()
    program = "swift/cli/rlhf.py" if name.startswith("swift") else "swift/cli/_megatron/rlhf.py"
    assert program in log


@pytest.mark.parametrize("name", NAMES)
def test_the_garbage_of_an_untrained_model_is_noticed(matrix: Workspace, name: str) -> None:
    """In the files of both backends."""
    alarms = matrix.json(f"results/{name}/train.json")["alarms"]
    at_first = {alarm["gate"] for alarm in alarms if alarm["step"] == 1}
    assert at_first & {"broken text", "length", "thinking"}


def test_no_process_is_left(matrix: Workspace) -> None:
    assert left_processes(matrix.path) == {}
