"""The end of the quick start: what was achieved, and where it is.

python -m grpoflow.stages.summary [--configfile FILE...]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from grpoflow.config import read_yaml
from grpoflow.config.load import merge
from grpoflow.launch.run import RESULTS

from .base import manifest_of
from .dag import MANIFEST, Dag


def summary(experiment: str) -> str:
    """Describe a finished experiment.

    Raises:
        FileNotFoundError: it is not finished.
    """
    directory = RESULTS / experiment
    train = manifest_of(directory / "train.json")
    evaluation = manifest_of(directory / "evaluation" / MANIFEST)
    sampled, reward = evaluation["sampled"], train["reward"]
    difference = sampled["difference"]
    return "\n".join(
        [
            f"{experiment}",
            f"  reward while training   {reward['first_tenth']:.3f} -> {reward['last_tenth']:.3f}"
            "   (first and last tenth of the steps)",
            f"  reward on held-out data {sampled['sft']['reward']:.3f} -> {sampled['grpo']['reward']:.3f}"
            f"   (difference {difference['mean']:+.3f}, {difference['confidence']:.0%} interval "
            f"[{difference['low']:+.3f}, {difference['high']:+.3f}], {evaluation['prompts']} prompts x "
            f"{evaluation['samples']} samples)",
            f"  exported model          {(directory / 'export' / 'model').absolute()}",
            f"  page of this run        {(directory / 'report.html').absolute()}",
        ]
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Summarise finished experiments.")
    parser.add_argument("--configfile", nargs="+", type=Path, default=[Path("config/config.yaml")])
    raw: dict[str, Any] = {}
    for path in parser.parse_known_args(argv)[0].configfile:
        raw = merge(raw, read_yaml(path))
    for experiment in Dag(raw).experiments:
        print(summary(experiment))
    print(f"\nSnakemake report: {(RESULTS / 'report.html').absolute()}")
    print("On a cluster:     snakemake --profile slurm --configfile CONFIG.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
