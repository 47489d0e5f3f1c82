"""Launch configurations that people published, and the verdict of preflight on them."""

from pathlib import Path
from typing import Any

import pytest
from configurations import config, environment, model_directory, other_model
from grpoflow.preflight import check_raw

LORA_GRPO: dict[str, Any] = {
    "trainer": {
        "tuner": "lora",
        "parallel": {"tensor": 1, "expert": 8},
    },
    "rollout": {"mode": "colocate", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.5},
}
"""A legal GRPO run of a mixture of experts behind the SFT cases."""

SFT: dict[str, Any] = {"dataset": "data/sft.jsonl", "learning_rate": 1.0e-5, "epochs": 1}


def mcore_grpo_moe(here: Path) -> dict[str, Any]:
    """ms-swift examples/models/qwen3_5/mcore_grpo_moe.sh: Qwen3.5-35B-A3B, LoRA, colocate, one node."""
    return config(
        {
            "model": {"path": model_directory(here, "35B-A3B")},
            "data": {"max_length": 1000},
            "trainer": {
                "tuner": "lora",
                "parallel": {"tensor": 1, "expert": 8},
                "global_batch_size": 64,
                "micro_batch_size": 1,
                "steps_per_generation": 2,
                "max_completion_length": 8192,
                "learning_rate": 5.0e-5,
                "beta": 0.0,
                "epsilon_high": 0.28,
                "overlong_filter": True,
                "save_steps": 20,
                "save_optimizer": False,
                "args": {
                    "moe_permute_fusion": True,
                    "padding_free": False,
                    "moe_expert_capacity_factor": 2,
                    "merge_lora": True,
                    "attention_backend": "flash",
                    "sleep_level": 1,
                },
            },
            "rollout": {"mode": "colocate", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.5},
        }
    )


def moe_colocate_full(_: Path) -> dict[str, Any]:
    """ms-swift examples/megatron/grpo/moe_colocate_full.sh: Qwen3-30B-A3B, full, colocate, one node."""
    return config(
        {
            "data": {"max_length": 8192},
            "trainer": {
                "parallel": {"tensor": 4, "pipeline": 2, "expert": 4},
                "global_batch_size": 8,
                "max_completion_length": 8192,
                "optimizer_cpu_offload": True,
                "recompute": "selective",
                "args": {"sleep_level": 2, "padding_free": True},
            },
            "rollout": {"mode": "colocate", "tensor_parallel_size": 8, "gpu_memory_utilization": 0.4},
        }
    )


def dense_server(_: Path) -> dict[str, Any]:
    """ms-swift examples/megatron/grpo/dense_server.sh: Qwen2.5-VL-3B, 6 trainer and 2 rollout GPUs."""
    return config(
        {
            "data": {"max_length": 8192},
            "cluster": {"env": {"MAX_PIXELS": "602112"}},
            "trainer": {
                "gpus": 6,
                "parallel": {"tensor": 1},
                "global_batch_size": 96,
                "micro_batch_size": 4,
                "steps_per_generation": 4,
                "save_steps": 20,
                "args": {"padding_free": True},
            },
            "rollout": {"nodes": 0, "gpus": 2},
        }
    )


def packing(here: Path) -> dict[str, Any]:
    """ms-swift examples/models/qwen3_5/packing.sh: full SFT of Qwen3.5-35B-A3B on one node."""
    sft = {
        **SFT,
        "max_length": 32768,
        "parallel": {"tensor": 4, "expert": 8},
        "global_batch_size": 4,
        "recompute": "full",
        "optimizer_cpu_offload": True,
        "args": {
            "packing": True,
            "mtp_num_layers": 1,
            "optimizer_offload_fraction": 0.64,
            "moe_expert_capacity_factor": 2,
        },
    }
    return config(LORA_GRPO, {"model": {"path": model_directory(here, "35B-A3B")}, "sft": sft})


def small_utilization(here: Path) -> dict[str, Any]:
    """A public script for Qwen3-235B: `swift rlhf`, ZeRO-3, colocate, one node."""
    return config(
        {
            "model": {"path": other_model(here, "qwen3_moe", 470 * 10**9)},
            "trainer": {
                "backend": "swift",
                "tuner": "lora",
                "lora_rank": 8,
                "deepspeed": "zero3",
                "parallel": "auto",
                "global_batch_size": 32,
                "num_generations": 2,
                "max_completion_length": 1024,
                "args": {"vllm_max_model_len": 2048, "sleep_level": 2},
            },
            "rollout": {"mode": "colocate", "gpu_memory_utilization": 0.2, "enforce_eager": True},
        }
    )


def grpo_9b(here: Path) -> dict[str, Any]:
    """ms-swift#8289: Qwen3.5-9B, `swift rlhf`, 6 trainer and 2 rollout GPUs, ms-swift 4.0.1."""
    return config(
        {
            "model": {"path": model_directory(here, "9B")},
            "data": {"max_length": 8096},
            "rewards": {"weights": [0.8, 0.2]},
            "cluster": {"ms_swift": "4.0.1", "env": {"MAX_PIXELS": "1605632"}},
            "trainer": {
                "backend": "swift",
                "deepspeed": "zero3",
                "parallel": "auto",
                "gpus": 6,
                "micro_batch_size": 4,
                "global_batch_size": 192,
                "max_completion_length": 4096,
                "beta": 0.001,
                "epsilon_high": 0.28,
            },
            "rollout": {"nodes": 0, "gpus": 2, "tensor_parallel_size": 2},
        }
    )


def multi_node_zero3(here: Path) -> dict[str, Any]:
    """ms-swift#9787: Qwen3.5-27B, ZeRO-3 on several nodes with an external server."""
    prefix = environment(here, ms_swift="4.3.0", vllm="0.17.0", transformers="5.3.0", deepspeed="0.14.4")
    return config(
        {
            "model": {"path": model_directory(here, "27B")},
            "cluster": {"ms_swift": "4.3.0", "environment": prefix},
            "trainer": {
                "backend": "swift",
                "deepspeed": "zero3",
                "parallel": "auto",
                "nodes": 2,
            },
            "rollout": {"tensor_parallel_size": 2},
        }
    )


def zero3_moe(here: Path) -> dict[str, Any]:
    """ms-swift#8145: full SFT of Qwen3.5-35B-A3B with ZeRO-3 on one node of 8 x A800."""
    sft = {
        **SFT,
        "backend": "swift",
        "deepspeed": "zero3",
        "global_batch_size": 256,
        "max_length": 2048,
    }
    return config(LORA_GRPO, {"model": {"path": model_directory(here, "35B-A3B")}, "sft": sft})


def num_iterations(_: Path) -> dict[str, Any]:
    """ms-swift#8017: Megatron GRPO with num_iterations on 4 GPUs."""
    return config(
        {
            "cluster": {"gpus_per_node": 4},
            "trainer": {
                "parallel": {"tensor": 4},
                "global_batch_size": 256,
                "args": {"num_iterations": 2},
            },
        }
    )


def qwen3_announcement(_: Path) -> dict[str, Any]:
    """QwenLM/Qwen3#1278: SFT of Qwen3-30B-A3B on two nodes of 8 x A800."""
    sft = {
        **SFT,
        "nodes": 2,
        "parallel": {"tensor": 2, "expert": 8},
        "global_batch_size": 16,
        "args": {"moe_grouped_gemm": True, "moe_shared_expert_overlap": True},
    }
    return config({"sft": sft})


CASES = {
    mcore_grpo_moe: ("warn", {"run_can_be_resumed"}),
    moe_colocate_full: ("ok", set()),
    dense_server: ("ok", set()),
    packing: ("warn", {"sft_fits"}),  # the logits of 32768 tokens leave little of them
    small_utilization: (
        "refuse",
        {"weights_fit_by_their_size", "completions_fit_the_window", "deepspeed_with_experts"},
    ),
    grpo_9b: ("refuse", {"ms_swift_is_recent_enough"}),
    multi_node_zero3: ("refuse", {"zero3_sync_is_right", "ms_swift_is_recent_enough"}),
    zero3_moe: ("warn", {"deepspeed_with_experts"}),
    num_iterations: ("refuse", {"num_iterations"}),
    qwen3_announcement: ("ok", set()),
}
"""What a person finds by hand: the verdict, and the rules that must be among those named."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_public_case(case: Any, tmp_path: Path) -> None:
    verdict, rules = CASES[case]
    _, report = check_raw(case(tmp_path))
    named = {problem.id: problem for problem in report.problems}
    assert (report.verdict, rules - named.keys()) == (verdict, set()), list(named.values())
    if verdict == "refuse":
        assert any(named[rule].level == "refuse" for rule in rules)
