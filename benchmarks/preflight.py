"""Wall time of `grpoflow preflight` and `grpoflow plan`, the interpreter included.

    python benchmarks/preflight.py [CONFIG...] [--runs N]

Prints the median and the slowest of N runs. The aim is one second on a login node; no test fails for it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def seconds(command: str, configs: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "grpoflow", command, *configs], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("config", nargs="*", default=["config/config.yaml"])
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    for command in ("preflight", "plan"):
        times = [seconds(command, arguments.config) for _ in range(arguments.runs)]
        print(f"{command}: median {statistics.median(times):.2f} s, slowest {max(times):.2f} s")


if __name__ == "__main__":
    main()
