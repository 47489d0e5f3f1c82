"""Turn the result files into docs/measurements.md: `python benchmarks/gpu/tables.py`.

results/cases/*.json are written by run_case.py, results/dag/*.json by collect.py. A test makes sure that the
page is what this program makes of the files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "measurements.md"
GIB = 2**30

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


def phase_bytes(case: dict[str, Any], phase: str, *, without: tuple[str, ...] = ()) -> int:
    """Predicted GPU bytes of the first rank in a phase."""
    items = case["predicted"][0]["items"]
    return sum(
        i["bytes"] for i in items if i["where"] == "gpu" and phase in i["phases"] and i["name"] not in without
    )


def memory_row(case: dict[str, Any]) -> Row:
    # the fixed reserve stands for what the allocator does not count: context, NCCL, fragmentation
    predicted = phase_bytes(case, "update", without=("reserve",))
    static = sum(
        i["bytes"]
        for i in case["predicted"][0]["items"]
        if i["name"] in ("weights", "adapter", "gradients", "optimizer", "reference")
    )
    measured = case["allocator"][0]
    peak, between = measured["max_allocated"], measured["median_allocated"]
    driver = max(case["driver_peak_mib"].values(), default=0) * 2**20
    return [
        case["case"],
        f"{predicted / GIB:.1f}",
        f"{peak / GIB:.1f}",
        f"{(predicted - peak) / peak:+.0%}",
        f"{static / GIB:.1f}",
        f"{between / GIB:.1f}",
        f"{measured['max_reserved'] / GIB:.1f}",
        f"{driver / GIB:.1f}",
    ]


def memory() -> str:
    head = ["case", "predicted update", "allocator peak", "error", "predicted static", "held between steps"]
    head += ["reserved", "driver"]
    return table(head, [memory_row(case) for case in cases() if ran(case)])


def failed() -> str:
    rows = [[c["case"], str(c["rc"]), f"{c['seconds']:.0f} s"] for c in cases() if not ran(c)]
    return table(["case", "exit code", "after"], rows) if rows else "None."


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
        first, second = dag["snakemake_exit_codes"]
        lines.append(
            f"`{dag['experiment']}`: a rank was killed with SIGKILL after step {dag['killed_at_step']}; "
            f"Snakemake ended with code {first}. Called again, it loaded the checkpoint of step "
            f"{dag['resumed_from_step']} and trained to step {dag['step']} (code {second}). "
            f"The {twice} rollouts that were made twice have the same prompts in {same} of {twice} cases; "
            "their completions are new samples. Reward, steps in the order of the log:"
        )
        rows = [[str(s["step"]), f"{s['reward']:.3f}", f"{s['grad_norm']:.3f}"] for s in dag["steps"]]
        lines.append(table(["step", "reward", "grad_norm"], rows))
    return "\n\n".join(lines)


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
