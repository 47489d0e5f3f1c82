"""Configurations for tests: plain dicts as a YAML file gives them."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpoflow.config.load import merge

CONFIGS = Path(__file__).parents[1] / "data/configs"

BASE: dict[str, Any] = {
    "model": {"path": "models/absent"},
    "data": {"train": "data/train.jsonl", "val": "data/val.jsonl", "max_length": 2048},
    "rewards": {"functions": ["accuracy", "format"]},
    "cluster": {"environment": "envs/absent", "gpu": "A800-SXM4-80GB", "gpus_per_node": 8},
    "rollout": {"nodes": 1},
    "trainer": {
        "nodes": 1,
        "parallel": {"tensor": 2},
        "global_batch_size": 64,
        "num_generations": 8,
        "max_completion_length": 2048,
        "learning_rate": 1.0e-6,
        "train_steps": 100,
        "recompute": "full",
    },
}
"""A legal GRPO run on two nodes, of a model that is not on this machine."""


def config(*overlays: dict[str, Any]) -> dict[str, Any]:
    """BASE with overlays laid over it."""
    merged: Any = copy.deepcopy(BASE)
    for overlay in overlays:
        merged = merge(merged, overlay)
    return dict(merged)


def model_directory(parent: Path, name: str) -> str:
    """A checkpoint of a published size, of which only config.json is there."""
    directory = parent / name
    if not directory.is_dir():
        directory.mkdir(parents=True)
        shutil.copy(CONFIGS / f"qwen3.5-{name}.json", directory / "config.json")
    return str(directory)


def changed_model(parent: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """The same with another config.json."""
    directory = model_directory(parent, name)
    path = Path(directory) / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return directory


def other_model(parent: Path, model_type: str, weight_bytes: int) -> str:
    """A checkpoint of a model that is not supported, with the index that says how large it is."""
    directory = parent / model_type
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    index = {"metadata": {"total_size": weight_bytes}, "weight_map": {}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(directory)


ENGINE_ARGUMENTS = """
import torch
@dataclass
class EngineArgs:
    model: str = ""
    max_num_seqs: int | None = None
    enable_prefix_caching: bool | None = None
    gdn_prefill_backend: str = get_field("gdn_prefill_backend")
    def create(self): self.no_argument: int = 1
@dataclass
class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False
class Other:
    neither: int = 1
"""


def environment(parent: Path, **versions: str) -> str:
    """A training environment of which only the metadata directories are there, EvalScope's index, and the
    arguments of vLLM's engine."""
    site = parent / "environment/lib/python3.12/site-packages"
    for name, version in versions.items():
        (site / f"{name}-{version}.dist-info").mkdir(parents=True, exist_ok=True)
    if "evalscope" in versions:
        index = site / "evalscope/benchmarks/_index.json"
        index.parent.mkdir(parents=True, exist_ok=True)
        index.write_text(json.dumps({"gsm8k": "module", "math_500": "module"}))
    if "vllm" in versions:
        source = site / "vllm/engine/arg_utils.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(ENGINE_ARGUMENTS)
    return str(parent / "environment")
