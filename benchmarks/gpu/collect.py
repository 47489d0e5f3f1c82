"""Make one small result file of a run of the DAG.

    python collect.py DIRECTORY EXPERIMENT RESULT.json [NOTE]

DIRECTORY is where run_dag.sh ran. Reads manifests and metrics only; what a chain has not reached is left out.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

METRICS = ("reward", "grad_norm", "completions/mean_length", "memory(GiB)", "elapsed_time")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def steps(log: Path) -> list[dict[str, Any]]:
    """Every logged step in the order of the log: after a resume, steps come again."""
    found = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        row = json.loads(line)
        if "reward" in row:
            position = row.get("iteration") or row["global_step/max_steps"]  # of Megatron, of swift rlhf
            step = int(str(position).partition("/")[0])
            found.append({"step": step} | {name: row[name] for name in METRICS if name in row})
    return found


def resumed_prompts(completions: Path, resumed_from: int) -> dict[str, int]:
    """How many rollouts were made before the kill and again after the resume, and how many of them for the
    same prompts. `gen_step` counts from 0 in each attempt."""
    rollouts = [json.loads(line) for line in completions.read_text(encoding="utf-8").splitlines()]
    resume = next(i for i in range(1, len(rollouts)) if rollouts[i]["gen_step"][0] == 0)
    killed, again = rollouts[resumed_from:resume], rollouts[resume:]
    pairs = list(zip(killed, again, strict=False))
    same = sum(sorted(old["prompt"]) == sorted(new["prompt"]) for old, new in pairs)
    return {"rollouts_made_twice": len(pairs), "of_them_for_the_same_prompts": same}


def attempt(directory: Path) -> dict[str, Any]:
    """Where an attempt began and how it ended."""
    end = read(directory / "end.json") or {}
    return {
        "attempt": directory.name,
        "resume_step": read(directory / "attempt.json")["resume_step"],
        "status": end.get("status"),
        "cause": str(end.get("cause", "")).partition("\n")[0],
    }


def evaluation(manifest: dict[str, Any] | None) -> dict[str, Any] | None:
    if manifest is None:
        return None
    sampled = manifest["sampled"]
    return {
        "prompts": manifest["prompts"],
        "samples": manifest["samples"],
        "before": sampled["sft"]["reward"],
        "after": sampled["grpo"]["reward"],
        "difference": sampled["difference"],
    }


def main(directory: Path, experiment: str, result: Path, note: str) -> None:
    own, shared = directory / "results" / experiment, directory / "results/shared"
    manifests = [read(path) for path in sorted(shared.glob("*/*/manifest.json"))]
    named = ("endpoints.json", "train.json", "evaluation/manifest.json", "export/manifest.json")
    manifests += [found for name in named if (found := read(own / name))]
    order = {
        name: place for place, name in enumerate(("cache_dataset", "cache_sft", "sft", "convert_to_mcore"))
    }
    manifests.sort(key=lambda m: order.get(m["stage"], len(order)))
    run = next(own.glob("runs/*/output"), None)
    log = (directory / "dag.log").read_text(encoding="utf-8", errors="replace")
    killed = read(directory / "killed.json")
    facts: dict[str, Any] = {
        "experiment": result.stem,
        "note": note,
        "state": "complete" if (own / "report.html").is_file() else "not complete",
        "snakemake_exit_codes": [int(code) for code in re.findall(r"^\d+ end rc (\d+)$", log, re.M)],
        "versions": manifests[0]["versions"] if manifests else {},
        "stages": [{"stage": m["stage"], "seconds": m["seconds"]} for m in manifests],
        "evaluation": evaluation(read(own / "evaluation/manifest.json")),
        "killed_at_step": killed and killed["step"],
    }
    if queue := re.search(r"^JOBID .*\n(?:\d+ .*\n)+", log, re.M):
        facts["squeue"] = queue[0].splitlines()
    facts["sft_loss"] = next((m["loss"] for m in manifests if m["stage"] == "sft"), None)
    if run is not None:
        facts["steps"] = steps(run / "logging.jsonl")
        attempts = sorted(run.parent.glob("attempts/*/attempt.json"), key=lambda p: read(p)["started"])
        facts["attempts"] = [attempt(path.parent) for path in attempts]
        if killed and len(attempts) > 1:
            facts["resumed_from_step"] = facts["attempts"][-1]["resume_step"]
            facts |= resumed_prompts(run / "completions.jsonl", facts["resumed_from_step"])
    if train := read(own / "train.json"):
        facts |= {"step": train["step"], "reward": train["reward"]}
    if export := read(own / "export/manifest.json"):
        facts["export_checks"] = {
            "logits": export["checks"]["logits"],
            "tensors_equal_to_checkpoint": export["checks"]["accounting"]["same"],
            "loaded_by": export["checks"]["loaded_by"],
        }
    converted = next((m for m in manifests if m["stage"] == "convert_to_mcore"), None)
    facts["tensors_equal_after_conversion"] = converted and converted["accounting"]["same"]
    result.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), " ".join(sys.argv[4:]))
