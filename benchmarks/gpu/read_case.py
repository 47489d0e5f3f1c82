"""What the files of a case say: those that probe.py writes, one per rank, and the checkpoints."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file; of one that is not there, none."""
    text = path.read_text() if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def allocator(samples: Path, phases: Path) -> dict[str, Any]:
    """Peaks of one rank in bytes; `phases`: the peak in each."""
    rows = lines_of(samples)
    if not rows:
        return {}
    cut = lines_of(phases)
    peaks = {name: max(r["peak"] for r in cut if r["phase"] == name) for name in {r["phase"] for r in cut}}
    half = rows[len(rows) // 2 :]
    return {
        "max_allocated": max([row["peak"] for row in rows] + list(peaks.values())),
        "max_reserved": max(row["peak_reserved"] for row in rows),
        # what stays between two steps: weights, gradients, optimizer (and reference)
        "median_allocated": sorted(row["allocated"] for row in half)[len(half) // 4],
        "phases": peaks,
        "before_rollout": sorted({r["allocated"] for r in cut if r["phase"] == "update"})[:3],
    }


def seconds_by_phase(phases: Path) -> list[dict[str, float]]:
    """Seconds of each phase from one weight sync to the next, on one rank: of one rollout and its steps. What
    comes before the first and after the last sync is left out."""
    rows = lines_of(phases)
    starts = [place for place, row in enumerate(rows) if row["phase"] == "sync"]
    found = []
    for first, end in itertools.pairwise(starts):
        split: dict[str, float] = {}
        for row in rows[first:end]:
            split[row["phase"]] = round(split.get(row["phase"], 0.0) + row["seconds"], 4)
        found.append(split)
    return found


def seconds_per_step(phases: Path, steps_per_generation: int = 1) -> dict[str, float]:
    """Mean seconds of each phase over the steps but those of the first and the last rollout, and how many
    these are."""
    held = seconds_by_phase(phases)[1:]
    steps = len(held) * steps_per_generation
    names = sorted({name for split in held for name in split})
    split = {name: round(sum(each.get(name, 0.0) for each in held) / steps, 3) for name in names}
    return {"steps": steps, **split} if steps else {}


def step_seconds(phases: Path) -> list[float]:
    """Seconds of every step of SFT, on one rank."""
    return [row["seconds"] for row in lines_of(phases) if row["phase"] == "step"]


def times(phases: Path, started: float) -> dict[str, float]:
    """Seconds of what a run does once or seldom, on one rank; `started`: when its program was started, in
    seconds of the epoch. What did not happen is left out.

    `bring_up` is the time until the first weight sync begins, of it `load` the loading of weights and, of a
    resumed run, of the checkpoint. `first_sync` and `sync` are the first sync and the mean of the others,
    `export` is the writing of Hugging Face files and `save` all of saving, `export` included.
    """
    rows = lines_of(phases)
    found: dict[str, float] = {}
    syncs = [row for row in rows if row["phase"] == "sync"]
    if syncs:
        found["bring_up"] = syncs[0]["begun"] - started
        found["first_sync"] = syncs[0]["seconds"]
    if later := [row["seconds"] for row in syncs[1:]]:
        found["sync"] = sum(later) / len(later)
    for name, parts in (("load", ("load",)), ("export", ("export",)), ("save", ("save", "export"))):
        if held := [row["seconds"] for row in rows if row["phase"] in parts]:
            found[name] = sum(held)
    return {name: round(value, 2) for name, value in found.items()}


def checkpoints(output: Path) -> list[dict[str, Any]]:
    """Bytes of every checkpoint of a run: of its Hugging Face weights, and of all the rest."""
    found = []
    for directory in sorted(output.glob("checkpoint-*")):
        sizes = {path: path.stat().st_size for path in directory.rglob("*") if path.is_file()}
        weights = sum(size for path, size in sizes.items() if path.suffix == ".safetensors")
        found.append({"name": directory.name, "hf": weights, "rest": sum(sizes.values()) - weights})
    return found
