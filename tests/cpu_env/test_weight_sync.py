"""Weights of the trainer arrive in a real `swift rollout` server. A wrong sync raises no error: numbers tell.

`rollout_check.py` says how far the server's log-probabilities are from those of a checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cpu_stack import CPU_BIN, REPO, CpuRun

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
START_SECONDS = 400
# mean |difference|: rounding in bfloat16 gave 0.01 to 0.06, packed weights 0.9 to 2.3, other weights 2.3
SAME, WRONG = 0.15, 0.5
CHANGED = """
import sys
from pathlib import Path
from safetensors.torch import load_file
a, b = ({k: v for f in Path(d).glob("*.safetensors") for k, v in load_file(f).items()} for d in sys.argv[1:])
print(*(name for name in a if not a[name].equal(b[name].to(a[name].dtype))))
"""
MODEL_TYPES = {"vlm": "qwen3_5", "moe_vlm": "qwen3_5_moe"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Server:
    port: int
    group_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def models(cpu_run: CpuRun, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Tiny checkpoints by kind and seed."""
    root = tmp_path_factory.mktemp("models")

    def get(kind: str, seed: int) -> Path:
        path = root / f"{kind}-{seed}"
        if not path.exists():
            arguments = ("-m", "grpoflow.demo.model", path, "--kind", kind, "--seed", str(seed))
            cpu_run("python", *arguments, env={"PYTHONPATH": str(REPO / "workflow")})
        return path

    return get


@contextmanager
def rollout(environment: dict[str, str], model: Path, kind: str, log: Path, **env: str) -> Iterator[Server]:
    """A server in a session of its own: SIGTERM to its first process alone would leave the workers behind."""
    server = Server(free_port(), free_port())
    argv = [
        *(CPU_BIN / "swift", "rollout", "--model", model, "--model_type", MODEL_TYPES[kind]),
        *("--template", "qwen3_5", "--enable_thinking", "false", "--torch_dtype", "bfloat16"),
        *("--vllm_max_model_len", "256", "--vllm_max_num_seqs", "64", "--vllm_enforce_eager", "true"),
        *("--vllm_limit_mm_per_prompt", '{"image":0,"video":0}'),
        *("--host", "127.0.0.1", "--port", str(server.port)),
    ]
    variables = environment | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            argv, env=variables | env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        # the log and not /health: on a busy port the server takes the next one, and a stranger would answer
        while f"Uvicorn running on {server.url}" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"swift rollout did not start\n{log.read_text()[-5000:]}")
            time.sleep(0.5)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def dense_server(
    cpu_environment: dict[str, str],
    models: Callable[[str, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "rollout.log"
    with rollout(cpu_environment, models("vlm", 0), "vlm", log) as server:
        yield server


def differences(cpu_run: CpuRun, server: Server, *checkpoints: Path) -> list[float]:
    done = cpu_run("python", HERE / "rollout_check.py", "compare", server.url, *checkpoints)
    found = json.loads(done.stdout.splitlines()[-1])
    return [found[str(checkpoint)] for checkpoint in checkpoints]


def send(cpu_run: CpuRun, server: Server, checkpoint: Path) -> None:
    cpu_run("python", HERE / "rollout_check.py", "sync", server.url, str(server.group_port), checkpoint)


def trainer_arguments(server: Server, model: Path, data: Path, out: Path) -> list[str | Path]:
    return [
        *("rlhf", "--rlhf_type", "grpo", "--model", model, "--model_type", "qwen3_5"),
        *("--template", "qwen3_5", "--enable_thinking", "false", "--check_model", "false"),
        *("--tuner_type", "full", "--torch_dtype", "float32", "--dataset", data / "train.jsonl"),
        *("--split_dataset_ratio", "0", "--dataset_num_proc", "1", "--dataloader_num_workers", "0"),
        *("--external_plugins", HERE / "any_reward.py", "--reward_funcs", "any_reward"),
        *("--use_vllm", "true", "--vllm_mode", "server", "--vllm_server_host", "127.0.0.1"),
        *("--vllm_server_port", str(server.port), "--vllm_server_group_port", str(server.group_port)),
        *("--num_generations", "8", "--max_completion_length", "16", "--max_length", "128"),
        *("--temperature", "1.0", "--top_p", "1.0", "--top_k", "-1", "--beta", "0.0"),
        *("--logging_steps", "1", "--save_steps", "1", "--output_dir", out, "--add_version", "false"),
    ]


def swift_rlhf(arguments: list[str | Path], cpu_run: CpuRun) -> None:
    cpu_run(
        *("swift", *arguments, "--max_steps", "3", "--per_device_train_batch_size", "16"),
        *(
            "--gradient_accumulation_steps",
            "1",
            "--learning_rate",
            "3e-3",
            "--gradient_checkpointing",
            "false",
        ),
        *("--lr_scheduler_type", "constant", "--warmup_ratio", "0", "--report_to", "none"),
    )


def megatron_rlhf(arguments: list[str | Path], cpu_run: CpuRun, *more: str, ranks: int = 1) -> None:
    cpu_run(
        *("megatron", *arguments, "--train_iters", "3", "--micro_batch_size", "2"),
        *("--global_batch_size", "16", "--lr", "3e-3", "--lr_decay_style", "constant"),
        *("--lr_warmup_iters", "0", "--bf16", "false", "--fp16", "false", "--ddp_backend", "gloo"),
        *("--attention_backend", "unfused", "--padding_free", "false", "--recompute_granularity", "none"),
        *("--gradient_accumulation_fusion", "false", "--sequence_parallel", "false", *more),
        env={
            "USE_MCORE_GDN": "0",
            "TORCHDYNAMO_DISABLE": "1",
            "NPROC_PER_NODE": str(ranks),
            "MASTER_PORT": str(free_port()),
        },
    )


def metrics(out: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (out / "logging.jsonl").read_text().splitlines()]
    return [row for row in rows if "reward" in row]


TRAINERS: dict[str, Callable[[list[str | Path], CpuRun], None]] = {
    "swift": swift_rlhf,
    "megatron": megatron_rlhf,
    "megatron-tp2": lambda arguments, cpu_run: megatron_rlhf(
        arguments, cpu_run, "--tensor_model_parallel_size", "2", ranks=2
    ),
    "megatron-dp2": lambda arguments, cpu_run: megatron_rlhf(
        arguments, cpu_run, "--micro_batch_size", "1", ranks=2
    ),
}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_server_holds_what_the_trainer_had_at_the_last_generation(
    trainer: str,
    dense_server: Server,
    models: Callable[[str, int], Path],
    cpu_run: CpuRun,
    tmp_path: Path,
) -> None:
    # another model than the server started with: every tensor has to arrive
    start = models("vlm", 1)
    cpu_run(
        *("python", "-m", "grpoflow.demo.data", tmp_path / "data"),
        env={"PYTHONPATH": str(REPO / "workflow")},
    )
    out = tmp_path / "out"
    TRAINERS[trainer](trainer_arguments(dense_server, start, tmp_path / "data", out), cpu_run)
    rows = metrics(out)
    assert len(rows) == 3
    assert all(float(row["grad_norm"]) > 0 and float(row["completions/mean_length"]) > 0 for row in rows)
    # three steps: the completions of step 3 were generated with the weights after step 2
    checkpoints = [out / f"checkpoint-{step}" for step in (1, 2, 3)]
    one, two, three, first, initial = differences(
        cpu_run, dense_server, *checkpoints, start, models("vlm", 0)
    )
    assert two < SAME
    assert two < min(one, three, first, initial) / 3, (one, two, three, first, initial)


def test_adapters_of_every_layer_arrive(
    dense_server: Server, models: Callable[[str, int], Path], cpu_run: CpuRun, tmp_path: Path
) -> None:
    start, out = models("vlm", 1), tmp_path / "out"
    cpu_run(
        *("python", "-m", "grpoflow.demo.data", tmp_path / "data"),
        env={"PYTHONPATH": str(REPO / "workflow")},
    )
    arguments = trainer_arguments(dense_server, start, tmp_path / "data", out)
    lora = ("--tuner_type", "lora", "--target_modules", "all-linear", "--merge_lora", "true")
    megatron_rlhf(arguments, cpu_run, *lora, "--lr", "3e-2")
    checkpoints = [out / f"checkpoint-{step}-merged" for step in (1, 2, 3)]
    done = cpu_run("python", "-c", CHANGED, start, checkpoints[1])
    changed = set(done.stdout.split())
    for part in ("linear_attn.in_proj_qkv", "linear_attn.out_proj", "self_attn.q_proj", "mlp.down_proj"):
        assert any(part in name for name in changed), part
    one, two, three, first = differences(cpu_run, dense_server, *checkpoints, start)
    assert two < SAME
    assert two < min(one, three, first) / 3, (one, two, three, first)


def test_weights_of_experts_arrive(
    cpu_environment: dict[str, str], models: Callable[[str, int], Path], cpu_run: CpuRun, tmp_path: Path
) -> None:
    old, new = models("moe_vlm", 0), models("moe_vlm", 1)
    with rollout(cpu_environment, old, "moe_vlm", tmp_path / "log") as server:
        before = differences(cpu_run, server, old, new)
        send(cpu_run, server, new)
        after = differences(cpu_run, server, old, new)
        send(cpu_run, server, old)
        back = differences(cpu_run, server, old, new)
    assert before[0] < SAME < WRONG < before[1]
    assert after[1] < SAME < WRONG < after[0]
    assert back[0] < SAME < WRONG < back[1]


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        (
            "vlm",
            ["vllm.model_executor.layers.utils", "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention"],
        ),
        ("moe_vlm", ["vllm.model_executor.layers.fused_moe.experts.cpu_moe"]),
    ],
)
def test_packed_weights_are_noticed(
    kind: str,
    left_out: list[str],
    cpu_environment: dict[str, str],
    models: Callable[[str, int], Path],
    cpu_run: CpuRun,
    tmp_path: Path,
) -> None:
    """Negative control: without a stand-in the server is wrong after a sync, and this check sees it."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import grpoflow_standins\nfor module in {left_out}:\n    del grpoflow_standins.HOOKS[module]\n"
    )
    old, new = models(kind, 0), models(kind, 1)
    with ExitStack() as stack:
        server = stack.enter_context(
            rollout(cpu_environment, old, kind, tmp_path / "log", PYTHONPATH=str(tmp_path))
        )
        before = differences(cpu_run, server, old, new)
        send(cpu_run, server, new)
        after = differences(cpu_run, server, old, new)
    assert before[0] < SAME
    assert after[1] > WRONG
    assert not re.search(r"500 Internal Server Error", (tmp_path / "log").read_text())
