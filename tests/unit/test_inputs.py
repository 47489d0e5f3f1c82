"""What the plan reads from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from configurations import config, model_directory
from grpoflow.config import load_experiments
from grpoflow.config.tuner import Parallel
from grpoflow.plan.inputs import architecture_of, colocate_spec, layout_spec, trainer_spec, vllm_spec
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.memory import ColocateSpec, VllmSpec, trainer_memory

COLOCATE: dict[str, Any] = {"mode": "colocate", "nodes": 0, "gpu_memory_utilization": 0.5}


def spec_of(**sections: Any) -> VllmSpec:
    return vllm_spec(load_experiments(config(sections))["main"])


@pytest.mark.parametrize(
    ("sections", "cached"),
    [
        # `swift rollout` leaves it to vLLM 0.23.0, which has it off for hybrid models
        ({}, False),
        ({"rollout": {"args": {"vllm_enable_prefix_caching": True}}}, True),
        ({"rollout": {"engine_args": {"enable_prefix_caching": True}}}, True),
        # an argument of ms-swift goes before one of the engine (swift infer_engine/vllm_engine.py:356)
        (
            {
                "rollout": {
                    "args": {"vllm_enable_prefix_caching": False},
                    "engine_args": {"enable_prefix_caching": True},
                }
            },
            False,
        ),
        ({"rollout": COLOCATE}, True),
        ({"rollout": COLOCATE | {"engine_args": {"enable_prefix_caching": False}}}, True),
        ({"rollout": COLOCATE, "trainer": {"args": {"vllm_enable_prefix_caching": False}}}, False),
    ],
)
def test_prefix_caching_is_what_the_engine_gets(sections: dict[str, Any], cached: bool) -> None:
    assert spec_of(**sections).prefix_caching is cached


def test_a_kv_cache_that_is_given() -> None:
    assert spec_of().kv_cache_memory is None
    given = {"engine_args": {"kv_cache_memory_bytes": 2**33}}
    assert spec_of(rollout=given).kv_cache_memory == 2**33


def test_arguments_given_as_text_mean_what_ms_swift_reads() -> None:
    text = {
        "sequence_parallel": "false",
        "decoder_first_pipeline_num_layers": "7",
        "mtp_num_layers": "0",
        "offload_model": "no",
        "offload_optimizer": "true",
        "sleep_level": "2",
        "vllm_max_model_len": "3000",
        "vllm_enable_prefix_caching": "false",
        "optimizer_offload_fraction": "0.5",
    }
    trainer = {"args": text, "optimizer_cpu_offload": True}
    overlay = {"trainer": trainer, "rollout": {"mode": "colocate", "gpu_memory_utilization": 0.5}}
    found = load_experiments(config(overlay))["main"]
    layout = layout_spec(Parallel(pipeline=2), 8, found.trainer.args)
    assert (layout.sequence_parallel, layout.first_stage_layers) == (False, 7)
    assert colocate_spec(found) == ColocateSpec(sleep_level=2, offload_model=False, offload_optimizer=True)
    assert (vllm_spec(found).prefix_caching, vllm_spec(found).max_model_len) == (False, 3000)
    assert (trainer_spec(found).trains_mtp, trainer_spec(found).optimizer_offload) == (False, 0.5)
    assert found.trainer.args == text, "the identity of a run is that of what was given"


def test_memory_follows_the_type_of_the_weights_and_the_whole_optimizer(tmp_path: Path) -> None:
    def items(**sections: Any) -> dict[str, int]:
        model = {"path": model_directory(tmp_path, "9B"), **sections.pop("model", {})}
        found = load_experiments(config({"model": model, **sections}))["main"]
        (rank,) = trainer_memory(architecture_of(found), LayoutSpec(8, tp=2), trainer_spec(found))
        return {item.name: item.bytes for item in rank.items}

    plain, wide = items(), items(model={"torch_dtype": "float32"})
    assert wide["weights"] == 2 * plain["weights"]
    assert wide["reference"] == 2 * plain["reference"]
    assert wide["gradients"] == plain["gradients"]  # Megatron sums them in float32 anyway
    # two moments in float32; those of bf16 weights have a float32 copy of them besides
    assert wide["optimizer"] == pytest.approx(plain["optimizer"] * 8 / 12)
    whole = items(trainer={"args": {"use_distributed_optimizer": "false"}})
    assert whole["optimizer"] == pytest.approx(4 * plain["optimizer"]), "of 4 data-parallel ranks"
