"""Megatron-SWIFT on the stand-ins: the same numbers on one rank and on two, and after a resume."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from cpu_stack import REPO, CpuRun

pytestmark = pytest.mark.real

MODEL_TYPES = {"vlm": "qwen3_5", "moe_vlm": "qwen3_5_moe"}
FLOAT32 = ("--torch_dtype", "float32", "--bf16", "false", "--fp16", "false")
BFLOAT16 = ("--torch_dtype", "bfloat16", "--bf16", "true")


@pytest.fixture(scope="module")
def demo(cpu_run: CpuRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tiny models by kind, and the data."""
    root = tmp_path_factory.mktemp("demo")
    package = {"PYTHONPATH": str(REPO / "workflow")}
    for kind in MODEL_TYPES:
        cpu_run("python", "-m", "grpoflow.demo.model", root / kind, "--kind", kind, env=package)
    cpu_run("python", "-m", "grpoflow.demo.data", root / "data", env=package)
    return root


def megatron_sft(
    cpu_run: CpuRun, demo: Path, out: Path, kind: str, *more: str | Path, ranks: int = 1, steps: int = 3
) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cpu_run(
        *(
            "megatron",
            "sft",
            "--model",
            demo / kind,
            "--model_type",
            MODEL_TYPES[kind],
            "--template",
            "qwen3_5",
        ),
        *("--enable_thinking", "false", "--check_model", "false", "--tuner_type", "full"),
        *("--dataset", demo / "data/sft.jsonl", "--split_dataset_ratio", "0", "--output_dir", out),
        *("--add_version", "false", "--train_iters", str(steps), "--micro_batch_size", "4"),
        *(
            "--global_batch_size",
            "8",
            "--lr",
            "5e-3",
            "--lr_decay_style",
            "constant",
            "--lr_warmup_iters",
            "0",
        ),
        *("--logging_steps", "1", "--save_steps", "2", "--max_length", "128", "--ddp_backend", "gloo"),
        *("--attention_backend", "unfused", "--padding_free", "false", "--recompute_granularity", "none"),
        *(
            "--gradient_accumulation_fusion",
            "false",
            "--dataloader_num_workers",
            "0",
            "--dataset_num_proc",
            "1",
        ),
        *more,
        env={
            "USE_MCORE_GDN": "0",
            "TORCHDYNAMO_DISABLE": "1",
            "NPROC_PER_NODE": str(ranks),
            "MASTER_PORT": str(port),
        },
    )
    rows = [json.loads(line) for line in (out / "logging.jsonl").read_text().splitlines()]
    return [(row["loss"], row["grad_norm"]) for row in rows if "grad_norm" in row]


@pytest.fixture(scope="module")
def one_rank(
    cpu_run: CpuRun, demo: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[tuple[float, float]]]:
    """Numbers of one rank, by kind of model; each run is made once."""
    made: dict[str, list[tuple[float, float]]] = {}

    def get(kind: str) -> list[tuple[float, float]]:
        if kind not in made:
            made[kind] = megatron_sft(cpu_run, demo, tmp_path_factory.mktemp("one") / kind, kind, *FLOAT32)
        return made[kind]

    return get


# megatron-core marks the vocabulary's weights as split only while it initialises them: without this argument
# the gradient norm, and with it the clipping, depends on the number of tensor-parallel ranks
TENSOR_PARALLEL = ("--tensor_model_parallel_size", "2", "--perform_initialization", "true")


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("vlm", TENSOR_PARALLEL),
        ("vlm", (*TENSOR_PARALLEL, "--sequence_parallel", "true")),
        ("vlm", ("--pipeline_model_parallel_size", "2")),
        ("vlm", ()),
        ("moe_vlm", ("--expert_model_parallel_size", "2")),
        ("moe_vlm", (*TENSOR_PARALLEL, "--sequence_parallel", "true", "--expert_model_parallel_size", "2")),
        ("moe_vlm", (*TENSOR_PARALLEL, "--sequence_parallel", "true", "--expert_tensor_parallel_size", "2")),
    ],
    ids=["tp", "tp-sp", "pp", "dp", "moe-ep", "moe-tp-ep", "moe-tp-etp"],
)
def test_two_ranks_train_as_one_does(
    cpu_run: CpuRun,
    demo: Path,
    one_rank: Callable[[str], list[tuple[float, float]]],
    tmp_path: Path,
    kind: str,
    layout: tuple[str, ...],
) -> None:
    two = megatron_sft(cpu_run, demo, tmp_path / "out", kind, *FLOAT32, *layout, ranks=2)
    wanted = one_rank(kind)
    assert len(two) == len(wanted) == 3
    for (loss, norm), (wanted_loss, wanted_norm) in zip(two, wanted, strict=True):
        assert loss == pytest.approx(wanted_loss, rel=1e-4)
        assert norm == pytest.approx(wanted_norm, rel=1e-3)
    assert wanted[-1][0] < wanted[0][0] - 1


@pytest.mark.parametrize(
    "precision",
    [BFLOAT16, (*FLOAT32, "--use_distributed_optimizer", "false")],
    ids=["bfloat16-distributed-optimizer", "float32"],
)
def test_resumed_run_gives_the_same_bytes(
    cpu_run: CpuRun, demo: Path, tmp_path: Path, precision: tuple[str, ...]
) -> None:
    keep = (*precision, "--no_save_optim", "false", "--no_save_rng", "false")
    whole = megatron_sft(cpu_run, demo, tmp_path / "whole", "vlm", *keep, steps=4)
    resume = ("--mcore_model", tmp_path / "whole/checkpoint-2", "--finetune", "false")
    rest = megatron_sft(cpu_run, demo, tmp_path / "rest", "vlm", *keep, *resume, steps=4)
    assert rest == whole[2:]
    first, second = (
        hashlib.sha256((tmp_path / name / "checkpoint-4/model.safetensors").read_bytes()).hexdigest()
        for name in ("whole", "rest")
    )
    assert first == second
