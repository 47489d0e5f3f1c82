"""The CPU environment, and programs run in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cpu_stack import CPU_BIN, CpuRun


@pytest.fixture(scope="session")
def cpu_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for a program of the CPU environment."""
    if not (CPU_BIN / "python").exists():
        pytest.skip("no CPU environment; make it with scripts/setup cpu")
    return os.environ | {
        "PATH": f"{CPU_BIN}:{os.environ['PATH']}",
        "PYTHONPATH": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "USE_HF": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "MODELSCOPE_CACHE": str(tmp_path_factory.mktemp("modelscope")),
    }


@pytest.fixture(scope="session")
def cpu_run(cpu_environment: dict[str, str]) -> CpuRun:
    """Run a program of the CPU environment to its end and return what it wrote; `env` adds variables."""

    def run(
        *argv: str | Path, env: dict[str, str] | None = None, check: bool = True, timeout: int = 600
    ) -> subprocess.CompletedProcess[str]:
        program, *arguments = argv
        done = subprocess.run(
            [CPU_BIN / program, *arguments],
            env=cpu_environment | (env or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(f"{argv} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}")
        return done

    return run
