"""Run one case of cases.yaml and write what it took: `python run_case.py PREFIX CASE RESULT.json [SECONDS]`.

The command line is the workflow's own (grpoflow.commands); the prediction is that of its plan. Rows are as
long as `max_length` allows, so that measured and predicted tokens agree. RESULT.json holds versions, GPU,
seed, the metrics of every step, the predicted items and the measured peak of the CUDA allocator and of the
driver. It is written also when the program fails or the time is up.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pynvml
import yaml
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.environment import clean_environment
from grpoflow.commands.sft import sft
from grpoflow.commands.train import TrainPaths, train
from grpoflow.config import Config, load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.launch.ports import free_port
from grpoflow.metrics import read_steps
from grpoflow.plan.inputs import parallel_of, sft_parallel_of
from grpoflow.preflight.estimate import sft_ranks, trainer_ranks
from grpoflow.preflight.subject import Subject

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = (
    *("torch", "triton", "transformers", "ms-swift", "megatron-core", "mcore-bridge", "transformer-engine"),
    *("vllm", "fla-core"),
)
ROWS = 64
WORDS = "What is the sum of these numbers? Think, then add 1 plus 2 plus 3 and say the answer. "


def write_rows(model: Path, out: Path, length: int, *, answered: bool) -> None:
    """Rows of at least 98 % of `length` tokens."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - slow

    tokenizer = AutoTokenizer.from_pretrained(model)
    per_copy = len(tokenizer(WORDS, add_special_tokens=False).input_ids)
    text = WORDS * ((length - 24) // per_copy)
    words = tokenizer(WORDS, add_special_tokens=False).input_ids
    rest = (length - 24) % per_copy
    text += tokenizer.decode(words[:rest])
    with out.open("w") as rows:
        for number in range(ROWS):
            user = {"role": "user", "content": f"{number}" if answered else f"{number} {text}"}
            answer = [{"role": "assistant", "content": text}] if answered else []
            rows.write(json.dumps({"messages": [user, *answer], "solution": "3"}) + "\n")


def driver_memory(pids: set[int]) -> dict[int, int]:
    """MiB per GPU that the driver counts for these processes."""
    found: dict[int, int] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid in pids:
                found[index] = found.get(index, 0) + ((process.usedGpuMemory or 0) >> 20)
    return found


def members(pid: int) -> set[int]:
    """A process and all below it. Not by session: torchrun gives every rank one of its own."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        below.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = set(), [pid]
    while todo:
        found.add(todo[-1])
        todo += below.get(todo.pop(), [])
    return found


def command_of(case: dict[str, Any], config: Config, work: Path) -> tuple[list[str], dict[str, str]]:
    model, rows = Path(config.model.path), work / "rows.jsonl"
    ranks = Ranks(nproc_per_node=case["gpus"], master_port=free_port())
    if case["command"] == "sft":
        assert config.sft is not None
        write_rows(model, rows, config.sft.max_length, answered=True)
        command = sft(config, rows, work / "output", ranks, sft_parallel_of(config, ranks.world_size))
        argv = ["--dataset" if word == "--cached_dataset" else word for word in command.argv]
    else:
        write_rows(model, rows, config.data.max_length, answered=False)
        paths = TrainPaths(model, None, rows, work / "output")
        command = train(config, paths, ranks, parallel_of(config, ranks.world_size), [])
        argv = list(command.argv)
    plugin = str(HERE / "memory_plugin.py")
    if "--external_plugins" in argv:
        argv.insert(argv.index("--external_plugins") + 1, plugin)
    else:
        argv += ["--external_plugins", plugin]
    return argv, {**command.env, "MEMORY_SAMPLES": str(work / "allocator")}


def summary(samples: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in samples.read_text().splitlines() if line.startswith("{")]
    if not rows:
        return {}
    return {
        "max_allocated": max(row["max_allocated_bytes"] for row in rows),
        "max_reserved": max(row["max_reserved_bytes"] for row in rows),
        # what stays between two steps: weights, gradients, optimizer (and reference)
        "median_allocated": sorted(row["allocated_bytes"] for row in rows[len(rows) // 2 :])[len(rows) // 4],
    }


def make_model(shape: str, out: Path) -> None:
    if shape.startswith("demo-"):
        argv = ["-m", "grpoflow.demo.model", out, "--kind", shape.removeprefix("demo-")]
    else:
        argv = [HERE / "make_model.py", out, ROOT / f"tests/data/configs/qwen3.5-{shape}.json"]
    subprocess.run([sys.executable, *argv], check=True)


def main(prefix: Path, name: str, result: Path, seconds: float) -> int:
    case = yaml.safe_load((HERE / "cases.yaml").read_text())[name]
    model = Path("resources/gpu") / case["shape"].lower()
    if not (model / "config.json").is_file():
        make_model(case["shape"], model)
    layers = [
        read_yaml(ROOT / "config/config.yaml"),
        read_yaml(HERE / "configs/case.yaml"),
        read_yaml(prefix / "machine.yaml"),
        {"model": {"path": str(model)}, "cluster": {"gpus_per_node": case["gpus"]}},
        case["config"],
    ]
    raw = layers[0]
    for layer in layers[1:]:
        raw = merge(raw, layer)
    config = load_experiments(raw)["main"]
    work = Path("cases").absolute() / name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    argv, extra = command_of(case, config, work)
    subject = Subject(name, config, 3600)
    ranks = sft_ranks(subject) if case["command"] == "sft" else trainer_ranks(subject)
    pynvml.nvmlInit()
    facts: dict[str, Any] = {
        "case": name,
        **{key: case[key] for key in ("command", "shape", "gpus")},
        "overlay": case["config"],
        "argv": argv,
        "versions": {package: version(package) for package in PACKAGES},
        "gpu": pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "seed": (config.sft or config.trainer).seed if case["command"] == "sft" else config.trainer.seed,
        "predicted": [
            {"peak": rank.peak, "phase": rank.peak_phase, "items": [asdict(item) for item in rank.items]}
            for rank in ranks
        ],
    }
    started = time.time()
    with (work / "log").open("w") as log:
        program = subprocess.Popen(
            argv,
            env={**clean_environment(config, os.environ), **extra},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        peak: dict[int, int] = {}
        while program.poll() is None and time.time() - started < seconds:
            time.sleep(0.5)
            for gpu, used in driver_memory(members(program.pid)).items():
                peak[gpu] = max(peak.get(gpu, 0), used)
        if program.poll() is None:
            for pid in members(program.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        program.wait()
    log_file = work / "output/logging.jsonl"
    facts |= {
        "rc": program.returncode,
        "seconds": round(time.time() - started, 1),
        "steps": read_steps(log_file) if log_file.is_file() else [],
        "driver_peak_mib": peak,
        "allocator": [summary(path) for path in sorted(work.glob("allocator.*"))],
    }
    temporary = result.with_suffix(".tmp")
    temporary.write_text(json.dumps(facts, indent=1) + "\n")
    temporary.replace(result)
    shutil.rmtree(work / "output", ignore_errors=True)
    print(f"{name}: rc {facts['rc']} after {facts['seconds']} s, {len(facts['steps'])} steps, {peak} MiB")
    return 0


if __name__ == "__main__":
    limit = float(sys.argv[4]) if len(sys.argv) > 4 else 600
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], Path(sys.argv[3]).absolute(), limit))
