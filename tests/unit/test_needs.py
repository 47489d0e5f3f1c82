"""What the jobs ask of Slurm where nobody says more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from configurations import config, model_directory
from grpoflow.config import Config, load_experiments
from grpoflow.config.load import merge
from grpoflow.preflight import check
from grpoflow.stages.needs import cpus_of, gres_of, mem_mb_of

RULES = ("sft", "convert_to_mcore", "train_grpo", "rollout_server", "evaluate", "export_hf", "probe_nodes")


def of_model(tmp_path: Path, size: str, **overlay: Any) -> Config:
    raw = merge(config({"model": {"path": model_directory(tmp_path, size)}}), overlay)
    return load_experiments(raw)["main"]


ONE = {"convert_to_mcore": "gpu:1", "export_hf": "gpu:1"}


@pytest.mark.parametrize(
    ("size", "overlay", "expected"),
    [
        ("9B", {}, ONE),
        ("122B-A10B", {"trainer": {"nodes": 8}}, {}),
        (
            "9B",
            {"rollout": {"nodes": 0, "gpus": 2}, "trainer": {"gpus": 4}},
            {**ONE, "train_grpo": "gpu:6", "rollout_server": "gpu:6"},
        ),
        ("35B-A3B", {"trainer": {"backend": "swift", "parallel": "auto"}}, ONE | {"export_hf": "gpu:2"}),
        ("122B-A10B", {"trainer": {"tuner": "lora"}}, {"export_hf": "gpu:5"}),
        ("9B", {"cluster": {"device": "cpu"}}, dict.fromkeys(RULES, "")),
    ],
)
def test_gpus_of_each_stage(
    tmp_path: Path, size: str, overlay: dict[str, Any], expected: dict[str, str]
) -> None:
    made = of_model(tmp_path, size, **overlay)
    assert {rule: gres_of(rule, made) for rule in RULES} == dict.fromkeys(RULES, "gpu:8") | expected
    assert gres_of("cache_dataset", made) == ""


def test_cpus_follow_the_gpus(tmp_path: Path) -> None:
    made = of_model(tmp_path, "9B")
    assert {rule: cpus_of(rule, made) for rule in ("train_grpo", "export_hf", "cache_dataset")} == {
        "train_grpo": 32,
        "export_hf": 4,
        "cache_dataset": 1,
    }


def test_memory_grows_with_what_is_held(tmp_path: Path) -> None:
    split = {"parallel": {"tensor": 1, "expert": 8}}
    small, large = of_model(tmp_path, "9B"), of_model(tmp_path, "35B-A3B", trainer=split)
    for rule in RULES[1:-1]:
        assert mem_mb_of(rule, small) < mem_mb_of(rule, large)
    offloading = of_model(tmp_path, "35B-A3B", trainer={**split, "optimizer_cpu_offload": True})
    assert mem_mb_of("train_grpo", offloading) > mem_mb_of("train_grpo", large) + 100_000
    assert mem_mb_of("evaluate", offloading) == mem_mb_of("evaluate", large)


def test_memory_is_at_most_that_of_the_node(tmp_path: Path) -> None:
    limited = of_model(tmp_path, "122B-A10B", trainer={"nodes": 8}, cluster={"host_memory_gib": 500})
    assert mem_mb_of("train_grpo", limited) == int(0.95 * 500 * 1024)


def test_stages_without_a_gpu(tmp_path: Path) -> None:
    on_cpu = of_model(tmp_path, "9B", cluster={"device": "cpu"})
    assert {mem_mb_of(rule, on_cpu) for rule in RULES} == {16000}


def test_the_job_that_follows_passes_the_checks_of_the_job(tmp_path: Path) -> None:
    made = of_model(tmp_path, "9B")
    asked = {"gres": gres_of("train_grpo", made), "mem_mb": mem_mb_of("train_grpo", made)}
    report = check({"main": made}, resources={"launcher": "slurm", **asked})
    assert not [problem for problem in report.problems if problem.id.startswith("job_")]
