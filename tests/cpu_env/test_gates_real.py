"""The gates on the real programs: tiny models, the real template, the real conversion."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpu_stack import REPO, CpuRun
from grpoflow.config import Config, load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.fidelity import MTP
from grpoflow.stages.base import Stage, StageFailed
from grpoflow.stages.convert import convert_to_mcore
from grpoflow.stages.dataset import CONVERSATIONS, cache_dataset, cache_sft

pytestmark = pytest.mark.real
WORKFLOW = {"PYTHONPATH": str(REPO / "workflow")}

EDIT = """
import sys
import torch
from pathlib import Path
from safetensors.torch import load_file, save_file
shard = next(Path(sys.argv[1]).glob("*.safetensors"))
weights = load_file(shard)
exec(sys.argv[2])
save_file(weights, shard, metadata={"format": "pt"})
"""
SWAP = """
name = next(n for n in weights if "experts" in n and weights[n].dim() == 3)
weights[name] = weights[name][[1, 0, 2, 3]]
"""


@pytest.fixture(scope="session")
def models(cpu_run: CpuRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    for kind in ("moe_vlm", "text"):
        cpu_run("python", "-m", "grpoflow.demo.model", directory / kind, "--kind", kind, env=WORKFLOW)
    return directory


Edit = Callable[[Path, str], Path]


@pytest.fixture
def edited(cpu_run: CpuRun, tmp_path: Path) -> Edit:
    """Copy a model and change its weights by a few lines of Python."""

    def edit(model: Path, code: str) -> Path:
        copy = tmp_path / "edited"
        shutil.copytree(model, copy)
        cpu_run("python", "-c", EDIT, copy, code)
        return copy

    return edit


def make_stage(
    name: str, tmp_path: Path, overlay: dict[str, Any], inputs: dict[str, Any] | None = None
) -> Stage:
    raw = merge(read_yaml(REPO / "config/config.yaml"), {"sft": None, **overlay})
    raw["cluster"]["cache"] = str(tmp_path / "cache")
    raw["cluster"]["environment"] = str(REPO / ".envs/cpu")
    raw["rewards"]["plugin"] = raw["rewards"]["plugin"] and str(REPO / raw["rewards"]["plugin"])
    config: Config = load_experiments(raw)["main"]
    output = tmp_path / "result" / name / "manifest.json"
    output.parent.mkdir(parents=True)
    return Stage(name, "x", config, inputs or {}, output, tmp_path / "logs", {})


def test_conversion_there_and_back(models: Path, edited: Edit, tmp_path: Path) -> None:
    """A MoE model with vision tower, and a tensor of multi-token prediction that Megatron does not hold."""
    source = edited(models / "moe_vlm", "weights['mtp.fc.weight'] = torch.ones(4, 8, dtype=torch.bfloat16)")
    overlay = {"model": {"path": str(source), "torch_dtype": "bfloat16"}}
    stage = make_stage("convert_to_mcore", tmp_path, overlay, {"start": str(source / "config.json")})
    convert_to_mcore(stage)
    manifest = json.loads(stage.output.read_text())
    accounting = manifest["accounting"]
    assert accounting["absent"] == {MTP: ["mtp.fc.weight"]}
    assert accounting["converted"] == {}
    assert accounting["same"] == manifest["tensors"] - 1
    assert (stage.output.parent / "checkpoint/latest_checkpointed_iteration.txt").is_file()


def test_direct_mode_checks_and_converts_nothing(models: Path, tmp_path: Path) -> None:
    overlay = {"model": {"path": str(models / "text")}, "convert": {"mode": "direct"}}
    inputs = {"start": str(models / "text/config.json")}
    stage = make_stage("convert_to_mcore", tmp_path, overlay, inputs)
    convert_to_mcore(stage)
    manifest = json.loads(stage.output.read_text())
    assert manifest["checkpoint"] is None
    assert manifest["tensors"] > 20
    assert not (tmp_path / "logs").exists()


FAULTS = {
    "two experts swapped": (SWAP, "the same slices in another order: [0, 1]"),
    "one value": ("weights['lm_head.weight'][0, 0] += 1", "lm_head.weight: largest difference 1"),
    "a tensor dropped": ("del weights['lm_head.weight']", "lm_head.weight: only in"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_changed_weights_are_found(models: Path, edited: Edit, cpu_run: CpuRun, fault: str) -> None:
    code, message = FAULTS[fault]
    argv = ("python", "-m", "grpoflow.training_env.compare_tensors", edited(models / "moe_vlm", code))
    done = cpu_run(*argv, models / "moe_vlm", env=WORKFLOW, check=False)
    assert done.returncode == 1
    assert message in done.stdout
    assert len(done.stdout.splitlines()) == 1


def png(path: Path, size: int) -> None:
    """A white image."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows = (b"\0" + b"\xff" * 3 * size) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    data = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(data))


def prompt(text: str, **columns: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "solution": "4", **columns}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


SAVE = """
import json, sys
from datasets import Dataset
train, val, directory = sys.argv[1:]
Dataset.from_list([json.loads(line) for line in open(train)]).to_parquet(directory + "/train.parquet")
rows = [json.loads(line) for line in open(val)]
for row in rows:
    row["images"] = [{"bytes": open(path, "rb").read(), "path": None} for path in row["images"]]
Dataset.from_list(rows).save_to_disk(directory + "/saved")
"""


def test_data_set_with_images(models: Path, cpu_run: CpuRun, tmp_path: Path) -> None:
    """Parquet, and a saved data set with embedded images; faults that only the template can see."""
    for name, size in (("small", 64), ("large", 256)):
        png(tmp_path / f"{name}.png", size)
    (tmp_path / "torn.png").write_bytes((tmp_path / "large.png").read_bytes()[:80])
    images = [
        prompt(f"<image>What is it? {n}", images=[str(tmp_path / n) + ".png"]) for n in ("small", "large")
    ]
    train = [
        *(prompt(f"What is {n} + {n}?", images=[]) for n in range(20)),
        prompt("much " * 200, images=[]),
        prompt("<image>Torn?", images=["torn.png"]),
        prompt("<image>Whole?", images=["large.png"]),
    ]
    rows = [write_rows(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", train), ("b", images))]
    cpu_run("python", "-c", SAVE, *rows, tmp_path)
    overlay = {
        "model": {"path": str(models / "moe_vlm")},
        "data": {
            "train": str(tmp_path / "train.parquet"),
            "val": str(tmp_path / "saved"),
            "num_proc": 2,
            "grpo_cached": True,
        },
        "rollout": {"limit_images": 1},
    }
    stage = make_stage("cache_dataset", tmp_path, overlay)
    cache_dataset(stage)

    manifest = json.loads(stage.output.read_text())
    result = stage.output.parent
    rejected = [json.loads(line) for line in (result / "rejected.jsonl").read_text().splitlines()]
    assert [entry["row"] for entry in rejected] == [21, 22]
    assert rejected[0]["reason"] == "longer than data.max_length"
    assert rejected[0]["tokens"] > 200
    assert rejected[1]["reason"] == "unreadable media"
    assert "truncated" in rejected[1]["detail"]
    assert manifest["counts"] == {"val": 2, "train": 21, "rejected": 2}
    assert manifest["cached_rows"] == {"grpo": 21}
    # 256 x 256 pixels in patches of 16 x 16, 2 x 2 of them a token; 64 x 64 is the least
    assert manifest["splits"]["train"]["image_tokens"]["max"] == 64
    assert manifest["splits"]["val"]["image_tokens"] == {
        **manifest["splits"]["val"]["image_tokens"],
        "min": 4,
        "max": 64,
    }
    val = [json.loads(line) for line in (result / "val.jsonl").read_text().splitlines()]
    assert all(Path(row["images"][0]).is_file() and result in Path(row["images"][0]).parents for row in val)
    # the first rows together have every column
    first = [json.loads(line) for line in (result / "train.jsonl").read_text().splitlines()[:2]]
    assert [("images" in row) for row in first] == [False, True]
    assert manifest["rewards"]["arithmetic_accuracy"]["needed"] == ["solution"]
    assert manifest["template"]["response_prefix"] == "<think>\n\n</think>\n\n"
    assert manifest["versions"]["ms-swift"]


def test_no_conversation_asks_a_held_out_prompt(models: Path, tmp_path: Path) -> None:
    """The same question, the same image, and one that GRPO would not take for its length."""

    def answered(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "messages": [*row["messages"], {"role": "assistant", "content": "4"}]}

    png(tmp_path / "picture.png", 64)
    shown = prompt("<image>What is this?", images=["picture.png"])
    held_out = [prompt("What is 2 + 2?"), shown, prompt("long " * 500)]
    free = [prompt("What is 3 + 1?"), prompt("<image>What is that?", images=["picture.png"])]
    overlay = {
        "model": {"path": str(models / "moe_vlm")},
        "data": {"val": write_rows(tmp_path / "val.jsonl", held_out), "num_proc": 1},
        "sft": {"dataset": write_rows(tmp_path / "sft.jsonl", [answered(row) for row in held_out + free])},
    }
    stage = make_stage("cache_sft", tmp_path, overlay)
    cache_sft(stage)

    manifest = json.loads(stage.output.read_text())
    assert manifest["counts"] == {"sft": 2, "rejected": 3}
    assert manifest["cached_rows"] == {"sft": 2}
    assert manifest["splits"]["sft"]["rejected"] == {"prompt is also in val": 3}
    result = stage.output.parent
    assert (result / CONVERSATIONS / "dataset_info.json").is_file()
    kept = [json.loads(line) for line in (result / "sft.jsonl").read_text().splitlines()]
    assert {row["messages"][0]["content"] for row in kept} == {"What is 3 + 1?", "<image>What is that?"}
    assert {path.name for path in result.iterdir()} == {
        *("manifest.json", "sft.jsonl", "rejected.jsonl", "sft")
    }


def test_values_that_change_on_the_way_are_found(models: Path, tmp_path: Path) -> None:
    rows = [prompt(f"Which day is {n}?", solution=f"2020-01-{n:02d}") for n in range(1, 20)]
    path = write_rows(tmp_path / "days.jsonl", rows)
    held_out = write_rows(tmp_path / "val.jsonl", [prompt("Which day is it?", solution="2021-01-01")])
    overlay = {
        "model": {"path": str(models / "text")},
        "data": {"train": path, "val": held_out, "num_proc": 1},
    }
    stage = make_stage("cache_dataset", tmp_path, overlay)
    with pytest.raises(Exception, match="warm_cache ended"):
        cache_dataset(stage)
    log = (tmp_path / "logs/warm_cache.log").read_text()
    assert "column solution: '2020-01-01' (str) reaches the reward functions as datetime" in log
    assert not stage.output.exists()


PLUGIN = """
from swift.rewards import orms

def broken(completions, **_):
    return [1.0]

orms["broken"] = broken
"""


def test_a_faulty_reward_plugin_stops_the_stage(models: Path, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    train = write_rows(tmp_path / "train.jsonl", [prompt(f"What is {n}?") for n in range(3)])
    val = write_rows(tmp_path / "val.jsonl", [prompt("What is it?")])
    overlay = {
        "model": {"path": str(models / "text")},
        "data": {"train": train, "val": val, "num_proc": 1},
        "rewards": {"plugin": str(tmp_path / "plugin.py"), "functions": ["broken"], "weights": None},
    }
    stage = make_stage("cache_dataset", tmp_path, overlay)
    with pytest.raises(StageFailed, match="a single one would be given to every completion"):
        cache_dataset(stage)
    assert not stage.output.exists()
