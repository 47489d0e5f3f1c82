"""What the plan reads from a configuration."""

from __future__ import annotations

from typing import Any

import pytest
from configurations import config
from grpoflow.config import load_experiments
from grpoflow.plan.inputs import vllm_spec
from grpoflow.plan.memory import VllmSpec

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
