"""Build a randomly initialised Qwen3.5 of a released shape: `python make_model.py OUT CONFIG.json`.

CONFIG.json is the configuration of a released checkpoint (tests/data/configs has them). Tokenizer, chat
template and processors are those of the demo model, so that the arithmetic data fit; the vocabulary keeps its
released size. bfloat16, seed 0. Runs in the training environment.

The model is never held as a whole: one process per GPU (one process without GPUs) draws one decoder layer
after the other there and writes it as a shard. Of the 35B-A3B shape a process holds 1.6 GiB on its GPU and at
most three times that in host memory; 65.4 GiB are written. Tensors have the names and shapes of the released
checkpoints: all experts of a layer in one tensor, [experts, 2 x width, hidden] and [experts, hidden, width].
transformers has no weights of the multi-token prediction, so there are none here either.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from grpoflow.demo.model import build
from safetensors.torch import save_file

IDS_OF_TEXT = ("eos_token_id", "pad_token_id", "bos_token_id")
IDS_OF_VISION = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
BRANCH_ENDS = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")
SHARD = 2**30
"""Bytes of a shard, unless a single layer has more: small enough that the last process is not waited for."""

Unit = tuple[str, Any]
"""Name of a module and the module: a decoder layer, a block of the vision tower, or what is in neither."""


def empty_model(directory: Path) -> Any:
    """The model without memory for its weights."""
    settings = hf.AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        return hf.AutoModelForImageTextToText.from_config(settings, dtype=torch.bfloat16)


def units(model: Any) -> list[Unit]:
    """The units of the model, in its order; every parameter is in exactly one."""
    found: list[Unit] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        listed = name.rpartition(".")[2].isdigit()
        if not inside and (listed or next(module.parameters(recurse=False), None) is not None):
            found.append((name, module))
    return found


def owner(model: Any, name: str) -> Any:
    """The part of the model that initialises a unit, by its own configuration: text model or vision tower."""
    parts = [m for n, m in model.named_modules() if isinstance(m, hf.PreTrainedModel) and name.startswith(n)]
    return parts[-1]  # outer ones come first


def size(unit: Unit) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in unit[1].parameters())


def shards(model: Any) -> list[list[Unit]]:
    """Neighbouring units together, up to SHARD bytes."""
    found: list[list[Unit]] = []
    held = SHARD
    for unit in units(model):
        if held + size(unit) > SHARD:
            found.append([])
            held = 0
        found[-1].append(unit)
        held += size(unit)
    return found


def draw(model: Any, unit: Unit, names: set[str], device: str) -> dict[str, torch.Tensor]:
    """Initialise a unit as transformers does, and make the last matrix of every branch smaller by
    sqrt(2 x layers), as GPT-2 does: with the plain initialisation 24 layers learned the format of an answer
    in 200 steps, but not the sum."""
    name, module = unit
    torch.manual_seed(zlib.crc32(name.encode()))
    module.to_empty(device=device)
    with torch.no_grad():
        module.apply(owner(model, name)._init_weights)
    layers = model.config.get_text_config().num_hidden_layers
    drawn = {}
    for inner, weight in module.named_parameters():
        if (full := f"{name}.{inner}") in names:
            scale = (2 * layers) ** -0.5 if full.endswith(BRANCH_ENDS) else 1.0
            drawn[full] = (weight.detach() * scale).cpu().contiguous()
    module.to_empty(device="meta")
    return drawn


def write_shards(out: Path, device: str, part: int, parts: int) -> None:
    """Write the shards `part`, `part + parts`, ... and say in a small file what is in them."""
    model = empty_model(out)
    names = {name for name, _ in model.named_parameters()}  # tied ones once
    every = shards(model)
    if device == "cpu":
        torch.set_num_threads(1)
    for number in range(part, len(every), parts):
        tensors: dict[str, torch.Tensor] = {}
        for unit in every[number]:
            tensors |= draw(model, unit, names, device)
        if tensors:
            file = f"model-{number + 1:05d}-of-{len(every):05d}.safetensors"
            save_file(tensors, out / file, metadata={"format": "pt"})
            held = {name: weight.numel() for name, weight in tensors.items()}
            (out / f"{file}.json").write_text(json.dumps({"file": file, "tensors": held}))


def write_config(out: Path, shape: Path) -> None:
    demo = json.loads((out / "config.json").read_text())
    config = json.loads(shape.read_text())
    text, demo_text = config["text_config"], demo["text_config"]
    config |= {name: demo[name] for name in IDS_OF_VISION}
    text |= {name: demo_text[name] for name in IDS_OF_TEXT if name in demo_text}
    # transformers fills a missing value with false, and mcore-bridge 1.6.5 prefers this one to the outer one
    text["tie_word_embeddings"] = config["tie_word_embeddings"]
    (out / "config.json").write_text(json.dumps(config))
    settings = hf.AutoConfig.from_pretrained(out)
    settings.dtype = settings.get_text_config().dtype = torch.bfloat16
    settings.save_pretrained(out)


def write_index(out: Path) -> int:
    """Join what the processes wrote; returns the number of parameters."""
    files: dict[str, str] = {}
    parameters = 0
    for path in sorted(out.glob("model-*.safetensors.json")):
        part = json.loads(path.read_text())
        files |= dict.fromkeys(part["tensors"], part["file"])
        parameters += sum(part["tensors"].values())
        path.unlink()
    index = {"metadata": {"total_size": 2 * parameters}, "weight_map": files}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    return parameters


def main(out: Path, shape: Path) -> None:
    started = time.time()
    build(out, "vlm")
    (out / "model.safetensors").unlink()
    write_config(out, shape)
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=write_shards, args=(out, device, part, len(devices)))
        for part, device in enumerate(devices)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"{out}: a process failed")
    parameters = write_index(out)
    print(f"{out}: {parameters / 1e6:.1f} M parameters in {time.time() - started:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
