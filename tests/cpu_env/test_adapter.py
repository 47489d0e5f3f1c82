"""A LoRA adapter on its own and merged into its model, compared as the export compares them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpu_stack import REPO, CpuRun
from grpoflow.fidelity import account_adapter

pytestmark = pytest.mark.real
WORKFLOW = {"PYTHONPATH": str(REPO / "workflow")}

TRAIN = """
import sys
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText
made, here, dtype = sys.argv[1:]
model = AutoModelForImageTextToText.from_pretrained(made, dtype=getattr(torch, dtype))
model.save_pretrained(f"{here}/start")
target = r".*language_model.*(q_proj|in_proj_qkv|down_proj)"
adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=target))
torch.manual_seed(0)
for name, weights in adapted.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(weights, std=0.05)
adapted.save_pretrained(f"{here}/adapter")
adapted.merge_and_unload().save_pretrained(f"{here}/merged")
"""
EDIT = """
import sys
from safetensors.torch import load_file, save_file
path, code = sys.argv[1:]
weights = load_file(path)
exec(code)
save_file(weights, path, metadata={"format": "pt"})
"""
FIRST = "name = next(name for name in weights if 'lora_B' in name); "


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def trained(
    request: pytest.FixtureRequest, cpu_run: CpuRun, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A directory with `start`, an `adapter` of it and the `merged` model."""
    here = tmp_path_factory.mktemp(request.param)
    cpu_run("python", "-m", "grpoflow.demo.model", here / "made", "--kind", "vlm", env=WORKFLOW)
    cpu_run("python", "-c", TRAIN, here / "made", here, request.param)
    for path in here.glob("made/*"):
        for model in ("start", "merged"):
            if not (here / model / path.name).exists() and "safetensors" not in path.name:
                shutil.copy(path, here / model)
    rows = [{"messages": [{"role": "user", "content": f"What is {n} plus 7?"}]} for n in range(3)]
    (here / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return here


@pytest.fixture
def compare(cpu_run: CpuRun, trained: Path, tmp_path: Path) -> Callable[[str], tuple[str, dict[str, Any]]]:
    """Change the adapter by a line of Python and compare it; returns the error and the numbers."""

    def run(edit: str) -> tuple[str, dict[str, Any]]:
        adapter, report = tmp_path / "adapter", tmp_path / "report.json"
        shutil.copytree(trained / "adapter", adapter)
        cpu_run("python", "-c", EDIT, adapter / "adapter_model.safetensors", edit)
        files = (trained / "start", trained / "merged", trained / "prompts.jsonl", report, adapter)
        module = ("python", "-m", "grpoflow.training_env.compare_logits")
        done = cpu_run(*module, *files, env=WORKFLOW, check=False)
        found = json.loads(report.read_text()) if report.is_file() else {}
        return (done.stderr or "differs") if done.returncode else "", found

    return run


def test_an_adapter_gives_the_logits_of_the_merged_model(
    trained: Path, compare: Callable[[str], tuple[str, dict[str, Any]]]
) -> None:
    assert account_adapter(trained / "adapter", trained / "start", 4, 8)["modules"] > 4
    error, found = compare("pass")
    assert error == ""
    assert found["mean_difference"] < found["without_adapter"] / 10


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("weights = {n: w * 0 for n, w in weights.items()}", ""),
        ("weights = {n: w * 2 if 'lora_B' in n else w for n, w in weights.items()}", ""),
        (f"{FIRST} del weights[name]", "does not fit its model in 1 tensors"),
        (
            f"{FIRST} weights[name.replace('layers.0', 'layers.77')] = weights[name] + 0",
            "does not fit its model",
        ),
    ],
    ids=["without effect", "of another scale", "a missing half", "a layer that is not there"],
)
def test_a_wrong_adapter_is_found(
    compare: Callable[[str], tuple[str, dict[str, Any]]], edit: str, message: str
) -> None:
    error, _ = compare(edit)
    assert error
    assert message in error
