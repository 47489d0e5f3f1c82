"""Run the embedded default with three seeds of GRPO and evaluation, and write down what came out.

    .envs/orchestrator/bin/python benchmarks/default/seeds.py [RESULT.json]

The experiments share data, SFT and conversion. Run from the repository's root. The run of seeds.json took
28 minutes on two cores that did other work too.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from grpoflow.files import read_json, write_json, write_text

SEEDS = (42, 43, 44)
RESULTS = Path("results")
BIN = Path(sys.executable).parent


def collect() -> dict[str, Any]:
    """What the finished experiments say."""
    runs = []
    for seed in SEEDS:
        train = read_json(RESULTS / f"seed{seed}" / "train.json")
        evaluation = read_json(RESULTS / f"seed{seed}" / "evaluation" / "manifest.json")
        runs.append(
            {
                "seed": seed,
                "steps": train["step"],
                "training_reward": train["reward"],
                "held_out": {
                    "prompts": evaluation["prompts"],
                    "samples": evaluation["samples"],
                    "before": evaluation["sampled"]["sft"]["reward"],
                    "after": evaluation["sampled"]["grpo"]["reward"],
                    "difference": evaluation["sampled"]["difference"],
                },
                "seconds": {"evaluate": evaluation["seconds"]},
            }
        )
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return {
        "command": "python benchmarks/default/seeds.py",
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, 2 cores, no GPU",
        "versions": train["versions"],
        "runs": runs,
    }


def main(argv: list[str]) -> int:
    overlay = RESULTS / "seeds.yaml"
    lines = [f"  seed{seed}: {{trainer: {{seed: {seed}}}, evaluate: {{seed: {seed}}}}}\n" for seed in SEEDS]
    write_text(overlay, "experiments:\n" + "".join(lines))
    subprocess.run(
        [
            BIN / "snakemake",
            *("--profile", "profiles/local", "--cores", "1"),
            *("--configfile", "config/config.yaml", overlay),
        ],
        check=True,
    )
    write_json(Path(argv[0]) if argv else Path(__file__).with_name("seeds.json"), collect())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
