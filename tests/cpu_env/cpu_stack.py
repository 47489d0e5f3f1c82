"""Where the CPU environment is, and the type of what runs a program in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
STANDINS = REPO / "envs/cpu/standins"
# a checkout's own environments, unless GRPOFLOW_ENVS says where they are
CPU_BIN = Path(os.environ.get("GRPOFLOW_ENVS", REPO / ".envs")).resolve() / "cpu/bin"

CpuRun = Callable[..., subprocess.CompletedProcess[str]]
