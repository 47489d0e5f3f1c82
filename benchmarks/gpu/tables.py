"""Turn the result files into docs/measurements.md: `python benchmarks/gpu/tables.py`.

results/cases/*.json are written by run_case.py, results/dag/*.json by collect.py. A test makes sure that the
page is what this program makes of the files.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

from grpoflow.plan.memory import RankMemory
from predict import plan_of_result

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "measurements.md"
GIB = 2**30
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
    """The allocator's peak in the update: of GRPO it was taken phase by phase."""
    measured = case["allocator"][0]
    return int(measured.get("phases", {}).get("update", measured["max_allocated"]))


def memory_row(case: dict[str, Any]) -> Row:
    rank = plan_of_result(case)[0][0]
    predicted, peak = held(rank, "update"), peak_of(case)
    measured = case["allocator"][0]
    driver = max(case["driver_peak_mib"].values(), default=0) * 2**20
    return [
        case["case"],
        shown(predicted),
        shown(peak),
        f"{(predicted - peak) / peak:+.0%}",
        shown(held(rank, "update", static=True)),
        shown(measured["median_allocated"]),
        shown(measured["max_reserved"]),
        shown(driver) if driver else "not taken",
    ]


def memory() -> str:
    head = ["case", "predicted update", "allocator peak", "error", "predicted static", "held between steps"]
    head += ["reserved", "driver"]
    return table(head, [memory_row(case) for case in cases() if ran(case) and not is_speed(case)])


def is_speed(case: dict[str, Any]) -> bool:
    return case["case"].startswith(("speed-", "fla"))


def speed() -> str:
    """The split of a step, and its ratio to that of the first row."""
    found = {case["case"]: case for case in cases() if case["case"].startswith("speed-") and case["steps"]}
    rows = []
    base = found.get("speed-colocate")
    for name, case in sorted(found.items(), key=lambda pair: pair[0] != "speed-colocate"):
        took = case["seconds_per_step"]
        parts = [took.get(phase) for phase in ("rollout", "sync", "logps", "update")]
        ratio = took["median"] / base["seconds_per_step"]["median"] if base and took["median"] else None
        rows.append(
            [
                name,
                *(f"{value:.2f}" if value is not None else "not taken" for value in (took["median"], *parts)),
                f"{ratio:.2f}" if ratio else "not taken",
            ]
        )
    head = ["case", "seconds a step", "rollout", "weight sync", "log-probabilities", "update", "ratio"]
    return table(head, rows) if rows else "Not taken."


def engines() -> str:
    """What vLLM said when it started, against the plan."""
    rows = []
    for case in cases():
        said = " ".join(case.get("engine", []))
        tokens = re.search(r"GPU KV cache size: ([\d,]+) tokens", said)
        loading = re.search(r"Model loading took ([\d.]+) GiB", said)
        if tokens is None or loading is None or "kv_cache_memory_bytes': None" not in str(case["overlay"]):
            continue
        engine = plan_of_result(case)[1]
        assert engine is not None
        weights = next(item.bytes for item in engine.rank.items if item.name == "vLLM weights")
        number = int(tokens[1].replace(",", ""))
        rows.append(
            [
                case["case"],
                shown(weights),
                loading[1],
                f"{engine.kv_tokens:,}",
                f"{number:,}",
                f"{(engine.kv_tokens - number) / number:+.0%}",
            ]
        )
    head = ["case", "predicted weights", "vLLM's weights", "predicted KV tokens", "vLLM's KV tokens", "error"]
    return table(head, rows) if rows else "Not taken."


def passes(case: dict[str, Any]) -> list[float]:
    """Seconds of each pass over the 5 lengths; the first step of all is left out, it starts the program."""
    seen = [step["seen"] for step in case["steps"]]
    ends = [seen[place] for place in range(4, len(seen), 5)]
    return [late - early for early, late in itertools.pairwise([seen[0], *ends])]


def fla() -> str:
    rows = []
    for case in cases():
        if case["case"].startswith("fla") and case["steps"]:
            took = [f"{seconds:.1f} s" for seconds in passes(case)]
            rows.append([case["versions"]["fla-core"], f"{case['steps'][0]['seen']:.0f} s", *took])
    width = max((len(row) for row in rows), default=2)
    head = ["fla-core", "until the first step", "4 further lengths", "the same 5 again", "and again"][:width]
    return table(head, [row + ["not taken"] * (width - len(row)) for row in rows]) if rows else "Not taken."


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
        "speed": speed(),
        "engines": engines(),
        "fla": fla(),
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
