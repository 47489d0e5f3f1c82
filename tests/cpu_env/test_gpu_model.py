"""benchmarks/gpu/make_model.py on a small mixture of experts: complete, and laid out as released ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cpu_stack import REPO, CpuRun
from grpoflow.checkpoints import Tensor, tensors

SMALL: dict[str, int] = {
    **{"vocab_size": 1024, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 2},
    **{"linear_key_head_dim": 64, "linear_value_head_dim": 64},
    **{"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    **{"shared_expert_intermediate_size": 32, "mtp_num_hidden_layers": 1},
}
SMALL_VISION: dict[str, int] = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "num_position_embeddings": 256},
    **{"out_hidden_size": 64},
}
LOAD = """
import json, sys, torch, transformers as hf
model, info = hf.AutoModelForImageTextToText.from_pretrained(
    sys.argv[1], dtype=torch.bfloat16, output_loading_info=True
)
print(json.dumps({
    "wrong": [str(found) for found in info.values() if found],
    "spread": {name: weight.float().std().item() for name, weight in model.named_parameters()},
}))
"""


def names(found: dict[str, Tensor]) -> set[tuple[str, int]]:
    """Names and ranks of tensors, without the numbers of layers."""
    return {(re.sub(r"\.\d+\.", ".N.", name), len(tensor.shape)) for name, tensor in found.items()}


@pytest.fixture(scope="module")
def built(cpu_run: CpuRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape: dict[str, Any] = json.loads((REPO / "benchmarks/gpu/configs/moe.json").read_text())
    shape["text_config"] |= SMALL
    shape["text_config"]["rope_parameters"]["mrope_section"] = [2, 1, 1]
    shape["vision_config"] |= SMALL_VISION
    directory = tmp_path_factory.mktemp("made")
    (directory / "shape.json").write_text(json.dumps(shape))
    argv = [REPO / "benchmarks/gpu/make_model.py", directory / "model", directory / "shape.json"]
    cpu_run("python", *argv, env={"PYTHONPATH": str(REPO / "workflow")})
    return directory / "model"


def test_experts_are_laid_out_as_those_of_the_demo_model(
    built: Path, cpu_run: CpuRun, tmp_path: Path
) -> None:
    """Which Megatron, mcore-bridge and vLLM load in other tests."""
    argv = ["-m", "grpoflow.demo.model", tmp_path / "demo", "--kind", "moe_vlm"]
    cpu_run("python", *argv, env={"PYTHONPATH": str(REPO / "workflow")})
    found = tensors(built)
    assert names(found) == names(tensors(tmp_path / "demo"))
    assert found["model.language_model.layers.0.mlp.experts.gate_up_proj"] == Tensor((8, 64, 64), "BF16")
    assert found["model.language_model.layers.0.mlp.experts.down_proj"] == Tensor((8, 64, 32), "BF16")


def test_transformers_finds_every_weight_and_it_is_initialised(built: Path, cpu_run: CpuRun) -> None:
    said = json.loads(cpu_run("python", "-c", LOAD, built).stdout.splitlines()[-1])
    assert said["wrong"] == []
    spread = said["spread"]
    layer = "model.language_model.layers.0"
    assert spread[f"{layer}.mlp.experts.gate_up_proj"] == pytest.approx(0.02, rel=0.05)
    assert spread[f"{layer}.mlp.experts.down_proj"] == pytest.approx(0.02 / 8**0.5, rel=0.05)
    assert spread[f"{layer}.mlp.gate.weight"] == pytest.approx(0.02, rel=0.2)
    assert spread[f"{layer}.input_layernorm.weight"] == 0
    assert all(0 <= value < 3 for value in spread.values())  # nothing left as it was in memory, NaN included
