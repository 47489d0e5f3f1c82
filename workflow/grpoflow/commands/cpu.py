"""What the programs need on a CPU, with the reason for each. Nothing here is used on GPUs."""

from __future__ import annotations

from typing import Any

from grpoflow.config import Config

MEGATRON = {
    "ddp_backend": "gloo",
    "attention_backend": "unfused",  # the fused kernels are CUDA
    "padding_free": False,  # packed sequences need the fla kernels
    "gradient_accumulation_fusion": False,  # an apex / Transformer Engine kernel
    "dataloader_num_workers": 0,
    # with float32 it cannot be loaded, on GPUs neither: preflight/resume.py, float32_optimizer_can_be_loaded
    "use_distributed_optimizer": False,
}
ROLLOUT = {
    "torch_dtype": "bfloat16",  # vLLM: "CPU GDN attention requires BF16"
    "vllm_enforce_eager": True,
}
SWIFT = {"dataloader_num_workers": 0}


def arguments(config: Config, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for a CPU, or none on GPUs."""
    return defaults if config.cluster.device == "cpu" else {}


def environment(config: Config, program: str) -> dict[str, str]:
    """Return the extra environment of a program (`hf`, `megatron` or `rollout`) on a CPU."""
    if config.cluster.device != "cpu":
        return {}
    variables = {
        "OMP_NUM_THREADS": "1",  # measured: 0.45 s per SFT step instead of 2.35 s with 2 threads on 2 cores
        "HF_HUB_OFFLINE": "1",
        "USE_HF": "1",
        "TORCHDYNAMO_DISABLE": "1",  # torch.compile takes minutes, and a C++ compiler that may not be there
    }
    if program == "megatron":
        # the GatedDeltaNet of megatron-core needs fla's Triton kernels
        variables["USE_MCORE_GDN"] = "0"
    if program == "rollout":
        variables |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
        }
    return variables
