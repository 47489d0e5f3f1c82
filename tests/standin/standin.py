"""A stand-in for the training environment, for tests: `swift rollout` and `megatron rlhf` without a model.

`install(prefix)` makes a directory to name as `cluster.environment`. Its programs take the same command
lines, speak the same HTTP routes, write the same files and end in the same ways as ms-swift 4.6.0, in
milliseconds instead of minutes; tests/contract runs them and the real programs against the
same checks. What they do not have is a model: completions are a function of the prompt, and rewards rise.

Speed and trouble are set by environment variables (key `cluster.env` of the configuration):

    STANDIN_LOAD     seconds until the rollout server is ready     (default 0.2)
    STANDIN_INIT     seconds until the trainer is initialised      (default 0.2)
    STANDIN_STEP     seconds of a training step                    (default 0.1)
    STANDIN_SAVE     seconds between the parts of a checkpoint     (default 0)
    STANDIN_SHARD    bytes of a shard                              (default 4096)
    STANDIN_FAULTS   a directory: a trainer that finds the file `eat` in it removes it and takes memory, one
                     that finds the file `crash` fails at the step that is written in it; a server that
                     finds the file `garbage` completes with garbage once it got weights
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "programs"
VERSION = "4.6.0"


def install(prefix: Path) -> Path:
    """Make `bin/swift`, `bin/megatron` and `bin/python` below `prefix`, and return it."""
    python = f"exec '{sys.executable}'"
    scripts = {
        "python": f'{python} "$@"',
        "swift": f"{python} '{PROGRAMS / 'launcher.py'}' swift \"$@\"",
        "megatron": f"{python} '{PROGRAMS / 'launcher.py'}' megatron \"$@\"",
    }
    (prefix / "bin").mkdir(parents=True)
    for name, line in scripts.items():
        path = prefix / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    metadata = prefix / f"lib/python3.11/site-packages/ms_swift-{VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: ms-swift\nVersion: {VERSION}\n")
    return prefix
