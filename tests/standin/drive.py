"""Runs one stage as Snakemake would, without Snakemake: `drive.py STAGE RAW_CONFIG RESOURCES`, the last two
as JSON, in a directory made by `prepare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grpoflow.stages.main import run

INPUT = {
    "dataset": "results/shared/dataset/d/manifest.json",
    "start": "vlm/config.json",
}
DATASET = {"sha256": "0" * 64, "template": {"response_prefix": None}}
"""What the stages read of the manifest of a data set."""
OUTPUT = {"rollout_server": "endpoints.json", "train_grpo": "train.json"}


class Items(dict[str, Any]):
    """Named values as Snakemake gives them: items, and attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def prepare(directory: Path, dataset: Path) -> None:
    """Put the inputs of the RL stages where they expect them."""
    shared = directory / Path(INPUT["dataset"]).parent
    shared.mkdir(parents=True)
    (shared / "train.jsonl").write_text(dataset.read_text())
    (shared / "manifest.json").write_text(json.dumps(DATASET))


def main(argv: list[str]) -> int:
    rule = argv[0]
    job = SimpleNamespace(
        rule=rule,
        wildcards=Items(experiment="main"),
        config=json.loads(argv[1]),
        input=Items(INPUT),
        output=[f"results/main/{OUTPUT[rule]}"],
        log=[f"logs/rules/{rule}-main.log"],
        resources=Items(json.loads(argv[2])),
    )
    return run(job)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
