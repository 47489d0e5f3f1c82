"""Configurations of the cases, and what the plan says of them.

`python predict.py CASE MODEL OUT.yaml` writes the configuration of a case, for `grpoflow preflight OUT.yaml`
and `grpoflow plan OUT.yaml`. MODEL is a directory with the config.json of its shape.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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


def raw_configuration(case: Case, model: Path, *overlays: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a case as its files have it: the default, configs/case.yaml, the machine, the
    case's own keys. There null takes an argument of configs/case.yaml away."""
    place = {"model": {"path": str(model)}, "cluster": {"gpus_per_node": case["gpus"]}}
    raw: dict[str, Any] = read_yaml(ROOT / "config/config.yaml")
    for layer in (read_yaml(HERE / "configs/case.yaml"), *overlays, place, case["config"]):
        raw = merge(raw, layer)
    for section, key in (("sft", "args"), ("trainer", "args"), ("rollout", "engine_args")):
        raw[section][key] = {name: value for name, value in raw[section][key].items() if value is not None}
    return raw


def configuration(case: Case, model: Path, *overlays: dict[str, Any]) -> Config:
    """The same, checked and typed."""
    return load_experiments(raw_configuration(case, model, *overlays))["main"]


def shape_file(shape: str) -> Path:
    """config.json of a shape of cases.yaml."""
    return HERE / "configs/moe.json" if shape == "moe" else ROOT / f"tests/data/configs/qwen3.5-{shape}.json"


def plan_of(case: Case, config: Config) -> tuple[list[RankMemory], VllmMemory | None]:
    """The trainer's ranks, and the engine of GRPO, as the plan has them."""
    subject = Subject("main", config)
    if case["command"] == "sft":
        return sft_ranks(subject), None
    return trainer_ranks(subject), rollout_memory(subject)


@contextmanager
def configuration_of_result(result: Case) -> Iterator[Config]:
    """The configuration that a result file was made with, beside a directory with the model's config.json."""
    known = result.get("model_config")
    text = json.dumps(known) if known else shape_file(result["shape"]).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(text, encoding="utf-8")
        yield configuration({**result, "config": result["overlay"]}, Path(directory))


def plan_of_result(result: Case) -> tuple[list[RankMemory], VllmMemory | None]:
    """The plan of a result file, as the plan is now."""
    with configuration_of_result(result) as config:
        return plan_of(result, config)


if __name__ == "__main__":
    text = yaml.safe_dump(raw_configuration(cases()[sys.argv[1]], Path(sys.argv[2])), sort_keys=False)
    Path(sys.argv[3]).write_text(text, encoding="utf-8")
