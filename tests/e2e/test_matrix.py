"""Short real runs of what the default does not use: swift backend, LoRA, MoE, text-only checkpoints."""

from __future__ import annotations

import pytest
from conftest import Workspace, make_workspace, processes_of

pytestmark = pytest.mark.real

EXPERIMENTS = """
sft: null
trainer: {train_steps: 2, save_steps: 2}
experiments:
  swift_lora:
    trainer: {backend: swift, tuner: lora}
  moe:
    model: {path: resources/demo/moe_vlm}
  megatron_lora_text:
    model: {path: resources/demo/text}
    trainer: {tuner: lora}
"""
NAMES = ("swift_lora", "moe", "megatron_lora_text")


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_workspace(tmp_path_factory.mktemp("matrix"))
    overlay = workspace.write("matrix.yaml", EXPERIMENTS)
    workspace.snakemake("--configfile", "config/config.yaml", overlay, "--until", "train_grpo")
    return workspace


@pytest.mark.parametrize("name", NAMES)
def test_trains_to_the_last_step(matrix: Workspace, name: str) -> None:
    train = matrix.json(f"results/{name}/train.json")
    assert train["step"] == 2
    log = (matrix.path / f"logs/{name}/train_grpo/latest/trainer0.log").read_text()
    program = "swift/cli/rlhf.py" if name == "swift_lora" else "swift/cli/_megatron/rlhf.py"
    assert program in log


def test_no_process_is_left(matrix: Workspace) -> None:
    assert processes_of(matrix.path) == []
