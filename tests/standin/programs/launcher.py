"""The command line programs `swift` and `megatron`: check the arguments, start the program, pass its end on.

Like the real ones they start a child (`megatron rlhf` a torchrun with its ranks; here one process stands for
all ranks of the node), die of SIGTERM without telling it, and end with 1 when a rank died of whatever.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from signal import Signals

from grpoflow.facts.arguments import load_catalogue

HERE = Path(__file__).resolve().parent
PROGRAMS = {"swift rollout": "server.py", "megatron rlhf": "trainer.py"}
TORCHRUN = ("NPROC_PER_NODE", "NNODES")


def main(argv: list[str]) -> int:
    command, words = " ".join(argv[:2]), argv[2:]
    file = PROGRAMS[command]
    torchrun = any(name in os.environ for name in TORCHRUN)
    if torchrun != (command == "megatron rlhf"):
        raise SystemExit(f"{command} {'needs' if not torchrun else 'must not see'} {' and '.join(TORCHRUN)}")
    print(f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}")
    print(f"run sh: `{sys.executable} {file} {' '.join(words)}`", flush=True)
    problems = load_catalogue("4.6.0").check_argv(command, words)
    if problems:
        told = [f"--{problem.argument}" for problem in problems]
        why = "; ".join(problem.message for problem in problems)
        print(f"Traceback (most recent call last):\nValueError: remaining_argv: {told} ({why})", flush=True)
        return 1
    code = subprocess.run([sys.executable, str(HERE / file), *words], check=False).returncode
    if code == 0 or not torchrun:
        return code % 256  # a killed child's negative number, as sys.exit makes it
    print(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        f"Root Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : {code}",
        flush=True,
    )
    if code < 0:
        print(f"  traceback : Signal {-code} ({Signals(-code).name}) received by PID 0", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
