"""What megatron-core, mcore-bridge and Megatron-SWIFT need before their first line runs on a CPU.

Replaces `torch.cuda` (see `cuda`) and puts the `transformer_engine` stand-in on `sys.path`. Only there: with
it importable everywhere, accelerate and peft would take it for the real one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from grpoflow_standins import cuda

TRANSFORMER_ENGINE_DIR = Path(__file__).resolve().parent.parent / "transformer_engine_standin"


def apply(_module: ModuleType) -> None:
    if str(TRANSFORMER_ENGINE_DIR) not in sys.path:
        sys.path.append(str(TRANSFORMER_ENGINE_DIR))
    cuda.install()
