"""Why a run is dead or slow: known texts in its logs and known pictures in its numbers.

Reads trainer, rollout, Slurm and Snakemake logs of any run, `logging.jsonl`, `args.json`,
`completions.jsonl`, a pip freeze and wandb's summary, in constant memory and in time linear in their size.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .diagnose import diagnose, first_cause
from .findings import Diagnosis, Finding
from .report import render

__all__ = ["Diagnosis", "Finding", "diagnose", "first_cause", "main"]

FORMATS = ("text", "json")
MAX_WIDTH = 120


def main(paths: Sequence[str | Path], fmt: str = "text") -> int:
    """Print the diagnosis of the logs below `paths`.

    Returns 0 if nothing is wrong, 1 if there are findings, 2 if the arguments are wrong (said on stderr) or
    there was nothing that could be judged. With json, what could not be read is said on stderr.
    """
    if fmt not in FORMATS:
        print(f"format {fmt!r} is unknown: {' or '.join(FORMATS)}", file=sys.stderr)
        return 2
    try:
        diagnosis = diagnose([Path(path) for path in paths])
    except OSError as error:
        print(f"grpoflow doctor: {error}", file=sys.stderr)
        return 2
    if fmt == "json":
        print(json.dumps(diagnosis.to_json(), indent=2, ensure_ascii=False))
        for entry in diagnosis.unread:
            print(f"grpoflow doctor: not read: {entry}", file=sys.stderr)
        if not diagnosis.judged:
            print("grpoflow doctor: nothing to judge", file=sys.stderr)
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = min(shutil.get_terminal_size((100, 24)).columns, MAX_WIDTH)
        print(render(diagnosis, colour, width))
    if not diagnosis.judged:
        return 2
    return 1 if diagnosis.findings else 0
