"""Configurations of the cases, and what the plan says of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from grpoflow.config import Config, load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.plan.memory import RankMemory, VllmMemory
from grpoflow.preflight.estimate import rollout_memory, sft_ranks, trainer_ranks
from grpoflow.preflight.subject import Subject

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

Case = dict[str, Any]


def cases() -> dict[str, Case]:
    found: dict[str, Case] = yaml.safe_load((HERE / "cases.yaml").read_text(encoding="utf-8"))
    return found


def configuration(case: Case, model: Path, *overlays: dict[str, Any]) -> Config:
    """The configuration of a case: the default, configs/case.yaml, the machine, the case's own keys."""
    place = {"model": {"path": str(model)}, "cluster": {"gpus_per_node": case["gpus"]}}
    raw = read_yaml(ROOT / "config/config.yaml")
    for layer in (read_yaml(HERE / "configs/case.yaml"), *overlays, place, case["config"]):
        raw = merge(raw, layer)
    return load_experiments(raw)["main"]


def plan_of(case: Case, config: Config) -> tuple[list[RankMemory], VllmMemory | None]:
    """The trainer's ranks, and the engine of GRPO, as the plan has them."""
    subject = Subject("main", config, 3600)
    if case["command"] == "sft":
        return sft_ranks(subject), None
    return trainer_ranks(subject), rollout_memory(subject)


def plan_of_result(result: Case) -> tuple[list[RankMemory], VllmMemory | None]:
    """The same of a result file, by the plan as it is now."""
    case = {**result, "config": result["overlay"]}
    text = result.get("model_config") or json.loads(
        (ROOT / f"tests/data/configs/qwen3.5-{result['shape']}.json").read_text(encoding="utf-8")
    )
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(text), encoding="utf-8")
        return plan_of(case, configuration(case, Path(directory)))
