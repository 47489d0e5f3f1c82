"""Run one case of cases.yaml and write what it took: `python run_case.py PREFIX CASE RESULT.json [SECONDS]`.

The command lines are the workflow's own (grpoflow.commands); the prediction is that of its plan. Rows are as
long as the configuration allows, so that measured and predicted tokens agree (`rows: mixed`: of 5 different
lengths). RESULT.json holds versions, GPU, seed, the metrics of every step and when it was logged, the
predicted items, the peaks of the CUDA allocator, of the driver and of host memory, the seconds of every
phase, of bring-up and of saving, the size of the checkpoints, what vLLM says when it starts, and whether
anything else was on the GPUs. It is written also when a program fails or the time is up. The GPUs are those
of CUDA_VISIBLE_DEVICES; in server mode the first are the server's. `until: N` ends a run when N steps were
logged; with `resume: true` it is then started again from its checkpoint until it logged one step more;
`cold: true` gives it a Triton cache of its own, which is empty.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import predict
import pynvml
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.environment import clean_environment
from grpoflow.commands.rollout import rollout
from grpoflow.commands.sft import sft
from grpoflow.commands.train import Server, TrainPaths, train
from grpoflow.config import Config, read_yaml
from grpoflow.launch.health import is_healthy
from grpoflow.launch.ports import port_block
from grpoflow.metrics import LogFollower
from grpoflow.plan.inputs import parallel_of, sft_parallel_of
from read_case import allocator, checkpoints, seconds_by_phase, seconds_per_step, step_seconds, times

PACKAGES = (
    *("torch", "triton", "transformers", "ms-swift", "megatron-core", "mcore-bridge", "transformer-engine"),
    *("vllm", "fla-core", "deepspeed"),
)
ROWS = 256
MIXED = 5
WORDS = "What is the sum of these numbers? Think, then add 1 plus 2 plus 3 and say the answer. "
# what vLLM 0.23 says of its memory when it starts
ENGINE = re.compile(
    r"Model loading took.*|Available KV cache memory.*|GPU KV cache size.*|Maximum concurrency.*|"
    r"Setting attention block size.*|Graph capturing finished.*|Padding mamba page size.*|"
    r"init engine.*took.*|not finite: .*"
)


def write_rows(model: Path, out: Path, lengths: list[int], *, answered: bool) -> list[int]:
    """Rows that are at most 40 tokens shorter than the given lengths; returns the tokens of the first MIXED
    with the tokenizer's own chat template, which may have six less than that of ms-swift."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - slow

    tokenizer = AutoTokenizer.from_pretrained(model)
    words = tokenizer(WORDS, add_special_tokens=False).input_ids
    counted = []
    with out.open("w") as rows:
        for number, length in enumerate(lengths):
            copies, rest = divmod(length - 40, len(words))
            text = WORDS * copies + tokenizer.decode(words[:rest])
            user = {"role": "user", "content": f"{number}" if answered else f"{number} {text}"}
            answer = [{"role": "assistant", "content": text}] if answered else []
            messages = [user, *answer]
            rows.write(json.dumps({"messages": messages, "solution": "3"}) + "\n")
            if number < MIXED:
                shown = tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=not answered, enable_thinking=False
                )
                counted.append(len(tokenizer(shown, add_special_tokens=False).input_ids))
    return counted


Used = list[tuple[int, int, int]]
"""GPU, process and MiB of everything that computes on the GPUs of the machine, as the driver counts."""


def used_gpus() -> Used:
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            found.append((index, process.pid, (process.usedGpuMemory or 0) >> 20))
    return found


def driver_memory(used: Used, pids: set[int]) -> dict[int, int]:
    """MiB per GPU of these processes."""
    found: dict[int, int] = {}
    for gpu, pid, mib in used:
        if pid in pids:
            found[gpu] = found.get(gpu, 0) + mib
    return found


def strangers(used: Used, pids: set[int], gpus: list[str]) -> int:
    """How many processes on these GPUs are none of ours and still there."""
    others = {pid for gpu, pid, _ in used if str(gpu) in gpus and pid not in pids}
    return sum(Path(f"/proc/{pid}").is_dir() for pid in others)


def machine() -> dict[str, Any]:
    """Which machine this is (speeds are compared on one alone), and MiB in use on its GPUs before a case."""
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return {
        "machine": sorted(str(pynvml.nvmlDeviceGetUUID(gpu)) for gpu in gpus),
        "used_before_mib": [pynvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20 for gpu in gpus],
    }


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


def end(program: subprocess.Popen[bytes]) -> None:
    for pid in members(program.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    program.wait()


def host_memory_mib() -> int:
    """MiB of host memory in use; what the kernel can give back, as the cache of files, does not count."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return (kib["MemTotal"] - kib["MemAvailable"]) >> 10


class Programs:
    """The programs of a case: the trainer, and in server mode the rollout server before it. With
    `resume_from` they go on from that checkpoint."""

    def __init__(self, case: predict.Case, config: Config, work: Path, resume_from: Path | None = None):
        self.config, self.work = config, work
        self.name = "resumed" if resume_from else "first"
        self.model, self.rows = Path(config.model.path), work / "rows.jsonl"
        self.ports = port_block(os.getpid(), 8, 21000)
        every = ",".join(str(gpu) for gpu in range(case["gpus"]))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", every).split(",")[: case["gpus"]]
        serves = case["command"] == "grpo" and config.rollout.mode == "server"
        served = (config.rollout.gpus or 1) if serves else 0
        self.gpus, self.server_gpus, self.trainer_gpus = visible, visible[:served], visible[served:]
        self.row_tokens: list[int] | None = None
        self.argv, self.env = self._trainer(case, resume_from)
        if case.get("cold"):
            self.env["TRITON_CACHE_DIR"] = str(work / "triton")
        self.replicas = max(1, served // config.rollout.tensor_parallel_size)

    def _trainer(self, case: predict.Case, resume_from: Path | None) -> tuple[list[str], dict[str, str]]:
        config, ranks = self.config, Ranks(nproc_per_node=len(self.trainer_gpus), master_port=self.ports)
        if case["command"] == "sft":
            assert config.sft is not None
            longest = config.sft.max_length
            mixed = [longest * (place + 1) // MIXED - 60 for place in range(MIXED)]
            lengths = mixed if case.get("rows") == "mixed" else [longest] * ROWS
            self.row_tokens = write_rows(self.model, self.rows, lengths, answered=True)
            parallel = sft_parallel_of(config, ranks.world_size)
            command = sft(config, self.rows, self.work / "output", ranks, parallel)
            argv = ["--dataset" if word == "--cached_dataset" else word for word in command.argv]
        else:
            lengths = [config.data.max_length] * ROWS
            self.row_tokens = write_rows(self.model, self.rows, lengths, answered=False)
            paths = TrainPaths(self.model, None, self.rows, self.work / "output", resume_from)
            servers = [Server("127.0.0.1", self.ports + 1, self.ports + 2)] if self.server_gpus else []
            command = train(config, paths, ranks, parallel_of(config, ranks.world_size), servers)
            argv = list(command.argv)
        plugin = str(predict.HERE / "probe.py")
        if "--external_plugins" in argv:
            argv.insert(argv.index("--external_plugins") + 1, plugin)
        else:
            argv += ["--external_plugins", plugin]
        return argv, {**command.env, "MEMORY_SAMPLES": str(self.work / f"{self.name}.allocator")}

    def start(self, argv: list[str], env: dict[str, str], gpus: list[str], log: str) -> Any:
        with (self.work / f"{self.name}.{log}").open("wb") as out:
            return subprocess.Popen(
                argv,
                env={
                    **clean_environment(self.config, os.environ),
                    **env,
                    "CUDA_VISIBLE_DEVICES": ",".join(gpus),
                },
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_server(self) -> Any:
        command = rollout(self.config, self.model, self.ports + 1, self.replicas)
        return self.start(list(command.argv), {**command.env}, self.server_gpus, "server.log")

    def start_trainer(self) -> Any:
        return self.start(self.argv, self.env, self.trainer_gpus, "log")

    def samples(self, rank: int) -> Path:
        return self.work / f"{self.name}.allocator.{rank}"

    def phases(self, rank: int) -> Path:
        return self.work / f"{self.name}.allocator.phases.{rank}"


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def engine_says(logs: list[Path]) -> list[str]:
    texts = [log.read_text(errors="replace") for log in logs if log.is_file()]
    return list(dict.fromkeys(line for text in texts for line in ENGINE.findall(text)))


def make_model(shape: str, out: Path) -> None:
    if shape.startswith("demo-"):
        argv = ["-m", "grpoflow.demo.model", str(out), "--kind", shape.removeprefix("demo-")]
    else:
        argv = [str(predict.HERE / "make_model.py"), str(out), str(predict.shape_file(shape))]
    subprocess.run([sys.executable, *argv], check=True)


def follow(programs: Programs, seconds: float, until: int | None = None) -> dict[str, Any]:
    """Run to the end, to the limit, or until so many steps were logged; what was seen on the way."""
    started, host = time.time(), host_memory_mib()
    log = programs.work / "output/logging.jsonl"
    follower = LogFollower(log, from_start=programs.name == "first")
    server = programs.start_server() if programs.server_gpus else None
    port, ready = programs.ports + 1, None
    running = [program for program in (server,) if program]
    trainer = programs.start_trainer()
    running.append(trainer)
    steps: list[dict[str, Any]] = []
    peaks: list[dict[int, int]] = [{} for _ in running]
    slow, host_peak, reached, others = 0.0, host, False, 0
    while trainer.poll() is None and not reached and time.time() - started < seconds:
        time.sleep(0.1)
        if log.is_file():
            steps += [row | {"seen": round(time.time() - started, 2)} for row in follower.read()]
        reached = until is not None and len(steps) >= until
        if time.time() - slow < 1:
            continue
        slow = time.time()
        host_peak = max(host_peak, host_memory_mib())
        if server and ready is None and is_healthy("127.0.0.1", port):
            ready = round(time.time() - started, 1)
        used, ours = used_gpus(), [members(program.pid) for program in running]
        others = max(others, strangers(used, set().union(*ours), programs.gpus))
        for pids, peak in zip(ours, peaks, strict=True):
            for gpu, mib in driver_memory(used, pids).items():
                peak[gpu] = max(peak.get(gpu, 0), mib)
    rc = 0 if reached else trainer.poll()
    for program in running:
        end(program)
    if log.is_file():
        steps += [row | {"seen": round(time.time() - started, 2)} for row in follower.read()]
    facts = {"rc": -9 if rc is None else rc, "seconds": round(time.time() - started, 1), "steps": steps}
    facts |= {"driver_peak_mib": peaks[-1], "other_processes": others}
    facts["host_memory_mib"] = {"before": host, "peak": host_peak}
    if server:
        facts |= {"server_ready": ready, "server_driver_peak_mib": peaks[0]}
    if programs.phases(0).is_file():
        facts["times"] = times(programs.phases(0), started)
    return facts


def resume(case: predict.Case, config: Config, work: Path, seconds: float) -> dict[str, Any]:
    """Go on from the last checkpoint, for one step."""
    saved = max((work / "output").glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    programs = Programs(case, config, work, resume_from=saved)
    return {"from": saved.name, **follow(programs, seconds, until=1)}


def main(prefix: Path, name: str, result: Path, seconds: float) -> int:
    case, started, made = predict.cases()[name], time.time(), None
    model = Path("resources/gpu") / case["shape"].lower()
    if not (model / "model.safetensors").is_file() and not (model / "model.safetensors.index.json").is_file():
        make_model(case["shape"], model)
        made = round(time.time() - started, 1)
    config = predict.configuration(case, model, read_yaml(prefix / "machine.yaml"))
    work = Path("cases").absolute() / name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    programs = Programs(case, config, work)
    ranks, engine = predict.plan_of(case, config)
    pynvml.nvmlInit()
    before = machine()
    seen = follow(programs, seconds, case.get("until"))
    after_first = [row["seen"] for row in seen["steps"][1:]]
    gaps = [late - early for early, late in itertools.pairwise(after_first)]
    files = [(programs.samples(rank), programs.phases(rank)) for rank in range(len(programs.trainer_gpus))]
    phases = programs.phases(0)
    facts: dict[str, Any] = {
        "case": name,
        **{key: case[key] for key in ("command", "shape", "gpus")},
        "overlay": case["config"],
        "model_config": json.loads((model / "config.json").read_text()),
        "argv": [word.replace(f"{prefix}/", "").replace(f"{Path.cwd()}/", "") for word in programs.argv],
        "versions": versions(),
        "gpu": pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)),
        "gpus_of_machine": pynvml.nvmlDeviceGetCount(),
        "cpus": os.cpu_count(),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "seed": (config.sft or config.trainer).seed if case["command"] == "sft" else config.trainer.seed,
        "predicted": [
            {"peak": rank.peak, "phase": rank.peak_phase, "items": [asdict(item) for item in rank.items]}
            for rank in ranks
        ],
        "predicted_kv_tokens": engine and engine.kv_tokens,
        "row_tokens": programs.row_tokens,
        "model_seconds": made,
        **before,
        **seen,
        "seconds_per_step": {"median": round(statistics.median(gaps), 3) if gaps else None}
        | seconds_per_step(phases, config.trainer.steps_per_generation),
        "seconds_by_phase": seconds_by_phase(phases),
        "step_seconds": step_seconds(phases),
        "allocator": [allocator(samples, phases) for samples, phases in files if samples.is_file()],
        "checkpoints": checkpoints(work / "output"),
        "engine": engine_says([work / "first.log", work / "first.server.log"]),
    }
    write(result, facts)
    left = seconds - seen["seconds"]
    if case.get("resume") and facts["checkpoints"] and left > 0:
        facts["resumed"] = resume(case, config, work, left)
        write(result, facts)
    shutil.rmtree(work / "output", ignore_errors=True)
    took = facts["seconds_per_step"]
    print(f"{name}: rc {facts['rc']} after {facts['seconds']} s, {len(facts['steps'])} steps, {took}")
    return 0


def write(result: Path, facts: dict[str, Any]) -> None:
    temporary = result.with_suffix(".tmp")
    temporary.write_text(json.dumps(facts, indent=1) + "\n")
    temporary.replace(result)


if __name__ == "__main__":
    limit = float(sys.argv[4]) if len(sys.argv) > 4 else 600
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2], Path(sys.argv[3]).absolute(), limit))
