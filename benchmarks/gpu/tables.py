"""Turn the result files into docs/measurements.md: `python benchmarks/gpu/tables.py`.

results/cases/*.json are written by run_case.py, results/dag/*.json by collect.py. A test makes sure that the
page is what this program makes of the files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grpoflow.plan.memory import RankMemory
from predict import plan_of_result

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "measurements.md"
GIB = 2**30
KV_CACHE = 4294967296  # of the engines in the cases of memory: configs/case.yaml
REACHED_THE_PEAK = {
    "sft-4b-full": "NaN in the gradient of the second step",
    "sft-moe": "time was up in the first backward pass",
    "grpo-0.8b-none": "time was up in the first update",
    "grpo-0.8b-lora": "time was up after the last step",
    "grpo-0.8b-server": "time was up after three of four steps",
    "grpo-2b-full": "time was up after two of four steps",
}
"""Cases that did not end by themselves, and came far enough for the peak."""
STATIC = ("weights", "adapter", "gradients", "optimizer", "reference")

Row = list[str]


def table(head: Row, rows: list[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def cases() -> list[dict[str, Any]]:
    return [read(path) for path in sorted((RESULTS / "cases").glob("*.json"))]


def ran(case: dict[str, Any]) -> bool:
    return case["rc"] == 0 and bool(case["allocator"] and case["allocator"][0])


def measured(case: dict[str, Any]) -> bool:
    """Whether a case came as far as the loss, where the peak is."""
    return ran(case) or case["case"] in REACHED_THE_PEAK


def shown(size: float) -> str:
    return f"{size / GIB:.1f}"


def held(rank: RankMemory, phase: str, *, static: bool = False) -> int:
    """GPU bytes that the plan counts in a phase, without the reserve: it stands for what the allocator does
    not count, context, NCCL and fragmentation."""
    return sum(
        item.bytes
        for item in rank.items
        if item.where == "gpu"
        and phase in item.phases
        and item.name != "reserve"
        and (item.name in STATIC or not static)
    )


def peak_of(case: dict[str, Any]) -> int:
    """The allocator's peak in the update: of GRPO it was taken phase by phase. The last, interrupted stretch
    of a run that was ended is in the samples alone."""
    measured = case["allocator"][0]
    by_phase = int(measured.get("phases", {}).get("update", 0))
    return by_phase if case["steps"] and by_phase else int(measured["max_allocated"])


def predicted_peak(case: dict[str, Any]) -> int:
    """The same by the plan, with what differs by the way of measuring: Adam's moments, 8 of its 12 bytes, are
    made in the first step, and torch counts the memory of an engine that sleeps in its process."""
    (rank, *_), engine = plan_of_result(case)
    predicted = held(rank, "update")
    if not case["steps"]:
        predicted -= sum(i.bytes for i in rank.items if i.name == "optimizer" and i.where == "gpu") * 8 // 12
    if engine is not None and "server_driver_peak_mib" not in case:
        weights = sum(item.bytes for item in engine.rank.items if item.name == "vLLM weights")
        predicted += weights + KV_CACHE
    return predicted


def memory_row(case: dict[str, Any]) -> Row:
    predicted, peak = predicted_peak(case), peak_of(case)
    measured = case["allocator"][0]
    driver = max(case["driver_peak_mib"].values(), default=0) * 2**20
    return [
        case["case"],
        str(len(case["steps"])),
        shown(predicted),
        shown(peak),
        f"{(predicted - peak) / peak:+.0%}",
        shown(held(plan_of_result(case)[0][0], "update", static=True)),
        shown(measured["max_reserved"]),
        shown(driver) if driver else "not taken",
    ]


def memory() -> str:
    head = ["case", "steps", "predicted", "allocator peak", "error", "of it static", "reserved", "driver"]
    return table(head, [memory_row(case) for case in cases() if measured(case)])


def failed() -> str:
    rows = [
        [c["case"], str(c["rc"]), f"{c['seconds']:.0f} s", str(len(c["steps"])), REACHED_THE_PEAK[c["case"]]]
        for c in cases()
        if not ran(c)
    ]
    return table(["case", "exit code", "after", "steps", "why"], rows) if rows else "None."


def machine() -> str:
    done = [case for case in cases() if ran(case)]
    if not done:
        return ""
    case = done[0]
    versions = ", ".join(f"{name} {version}" for name, version in case["versions"].items())
    return f"{case['gpu']}, driver {case['driver']}; {versions}."


def dags() -> list[dict[str, Any]]:
    return [read(path) for path in sorted((RESULTS / "dag").glob("*.json"))]


def stage_table(dag: dict[str, Any]) -> str:
    return table(["stage", "seconds"], [[s["stage"], f"{s['seconds']:.0f}"] for s in dag["stages"]])


def number(value: float | None) -> str:
    return "not taken" if value is None else f"{value:.3f}"


def dag_rows() -> list[Row]:
    rows = []
    for dag in dags():
        reward, evaluation = dag.get("reward") or {}, dag.get("evaluation") or {}
        gain = evaluation.get("difference") or {}
        rows.append(
            [
                dag["experiment"],
                dag["state"],
                str(dag.get("step", "")),
                number(reward.get("first_tenth")),
                number(reward.get("last_tenth")),
                number(evaluation.get("before")),
                number(evaluation.get("after")),
                f"[{gain['low']:+.3f}, {gain['high']:+.3f}]" if gain else "not taken",
                "verified" if dag.get("export_checks") else "not taken",
            ]
        )
    return rows


def notes() -> str:
    return "\n".join(f"- `{dag['experiment']}`: {dag['note']}" for dag in dags())


def resume() -> str:
    lines = []
    for dag in dags():
        if dag.get("resumed_from_step") is None:
            continue
        twice, same = dag["rollouts_made_twice"], dag["of_them_for_the_same_prompts"]
        tries = [a["attempt"].rpartition(".")[0] for a in dag.get("attempts", [])]
        how = (
            f"Snakemake ended with code {dag['snakemake_exit_codes'][0]} and was called again"
            if len(set(tries)) != 1
            else "The job tried again by itself"
        )
        lines.append(
            f"`{dag['experiment']}`: a rank was killed with SIGKILL after step {dag['killed_at_step']}. "
            f"{how}, loaded the checkpoint of step {dag['resumed_from_step']} and trained to step "
            f"{dag['step']}. "
            f"The {twice} rollouts that were made twice have the same prompts in {same} of {twice} cases; "
            "their completions are new samples. Reward, steps in the order of the log:"
        )
        rows = [[str(s["step"]), f"{s['reward']:.3f}", f"{s['grad_norm']:.3f}"] for s in dag["steps"]]
        lines.append(table(["step", "reward", "grad_norm"], rows))
    return "\n\n".join(lines)


def queue() -> str:
    """What Slurm said of the jobs of the chain under it."""
    (lines,) = [dag["squeue"] for dag in dags() if dag.get("squeue")]
    rows = [line.split(maxsplit=7) for line in lines[1:]]
    shown = [[job, what, state, gres, took] for job, _, state, gres, took, _, _, what in rows]
    return table(["job", "rule", "state", "GPUs", "time"], sorted(shown, key=lambda row: int(row[0])))


def dag_table() -> str:
    head = ["experiment", "chain", "step", "reward, first tenth", "last tenth"]
    head += ["held-out before", "after", "95 % interval of the difference", "export"]
    return table(head, dag_rows())


def page() -> str:
    """The whole page."""
    text = (HERE / "measurements.md.in").read_text(encoding="utf-8")
    parts = {
        "machine": machine(),
        "dag": dag_table(),
        "notes": notes(),
        "resume": resume(),
        "queue": queue(),
        "stages": "\n\n".join(f"`{dag['experiment']}`:\n\n{stage_table(dag)}" for dag in dags()),
        "memory": memory(),
        "failed": failed(),
    }
    for name, content in parts.items():
        text = text.replace(f"<!-- {name} -->", content)
    return text


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
