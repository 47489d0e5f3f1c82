"""Turn the result files into docs/measurements.md: `python benchmarks/gpu/tables.py`.

results/cases/*.json are written by run_case.py, results/dag/*.json by collect.py. A test makes sure that the
page is what this program makes of the files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grpoflow.config import Config
from grpoflow.models.architecture import Architecture
from grpoflow.models.counts import flops_per_token
from grpoflow.plan.hardware import gpu_named
from grpoflow.plan.memory import RankMemory, host_bytes_per_node
from grpoflow.preflight.estimate import disk
from grpoflow.preflight.subject import Subject
from predict import configuration_of_result, plan_of, plan_of_result

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "measurements.md"
GIB = 2**30
FILLED = 0.98  # least share of data.max_length that the rows of run_case.py fill
EIGHT = "eight-"
"""How the names of the cases of eight GPUs begin: they have tables of their own."""
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


def cases(*, eight: bool = False) -> list[dict[str, Any]]:
    """Results of the cases of one and two GPUs, or of those of eight."""
    paths = sorted((RESULTS / "cases").glob("*.json"))
    return [read(path) for path in paths if path.name.startswith(EIGHT) == eight]


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
    with configuration_of_result(case) as config:
        (rank, *_), engine = plan_of(case, config)
        cache = config.rollout.engine_args.get("kv_cache_memory_bytes")
    predicted = held(rank, "update")
    if not case["steps"]:
        predicted -= sum(i.bytes for i in rank.items if i.name == "optimizer" and i.where == "gpu") * 8 // 12
    if engine is not None and "server_driver_peak_mib" not in case:
        asleep = {item.name: item.bytes for item in engine.rank.items}
        if not any(item.name == "vLLM weights" and "update" in item.phases for item in rank.items):
            predicted += asleep["vLLM weights"] + (cache or asleep["KV cache"] + asleep["GDN states"])
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


# --- eight GPUs ---


def spread(sizes: list[int]) -> str:
    """Smallest and largest of the ranks, in GiB."""
    low, high = shown(min(sizes)), shown(max(sizes))
    return low if low == high else f"{low} to {high}"


def ranks_row(case: dict[str, Any]) -> Row:
    """Peak memory of every rank, and of the host, against the plan."""
    ranks, _ = plan_of_result(case)
    of_ranks = [rank for rank in case["allocator"] if rank]
    host = case["host_memory_mib"]
    trainers = len(case["driver_peak_mib"]) or len(of_ranks)
    if not of_ranks:
        return [case["case"], shown(predicted_peak(case)), *["not taken"] * 5]
    return [
        case["case"],
        shown(predicted_peak(case)),
        spread([rank["max_allocated"] for rank in of_ranks]),
        spread([rank["max_reserved"] for rank in of_ranks]),
        spread([size << 20 for size in case["driver_peak_mib"].values()] or [0]),
        shown(host_bytes_per_node(ranks, trainers)),
        shown((host["peak"] - host["before"]) << 20),
    ]


def tokens_per_step(case: dict[str, Any], config: Config) -> float:
    """Tokens of prompts and completions of a step."""
    lengths = [step["completions/mean_length"] for step in case["steps"]]
    mean = FILLED * config.data.max_length + sum(lengths) / len(lengths)
    return float(config.trainer.global_batch_size * mean)


def speed_row(case: dict[str, Any]) -> Row:
    """Seconds of a step by phase, tokens per second and GPU of the whole step, and the share of the BF16 peak
    of the trainer's GPUs that the update reaches. Recomputation does not count."""
    split = case["seconds_per_step"]
    phases = ("sync", "rollout", "logps", "update")
    if "update" not in split or not case["steps"]:
        return [case["case"], "0", *["not taken"] * (len(phases) + 3)]
    with configuration_of_result(case) as config:
        tokens = tokens_per_step(case, config)
        gpu, trainer = gpu_named(config.cluster.gpu), config.trainer
    other = ("steps", "median", "load", "save", "export")
    whole = sum(seconds for name, seconds in split.items() if name not in other)
    length = int(tokens / trainer.global_batch_size)
    flops = flops_per_token(Architecture.from_config(case["model_config"]))
    work = tokens * flops.train(length, frozen=trainer.tuner == "lora")
    peak = len(case["allocator"]) * gpu.bf16_flops
    return [
        case["case"],
        str(split["steps"]),
        *(f"{split[name]:.1f}" if name in split else "none" for name in phases),
        f"{whole:.1f}",
        f"{tokens / whole / case['gpus']:,.0f}",
        f"{work / split['update'] / peak:.1%}",
    ]


def files_row(case: dict[str, Any]) -> Row:
    """Bring-up, weight sync, and writing and reading of checkpoints."""
    times, resumed = case.get("times", {}), case.get("resumed", {}).get("times", {})
    with configuration_of_result(case) as config:
        storage = disk(Subject("main", config))
    written = case["checkpoints"][-1] if case["checkpoints"] else None

    def seconds(found: dict[str, float], name: str) -> str:
        return f"{found[name]:.0f}" if name in found else "not taken"

    return [
        case["case"],
        "there already" if case["model_seconds"] is None else f"{case['model_seconds']:.0f}",
        *(seconds(times, name) for name in ("bring_up", "load", "first_sync", "sync")),
        shown(storage.per_checkpoint) if storage else "not taken",
        f"{shown(written['hf'])} + {shown(written['rest'])}" if written else "not taken",
        *(seconds(times, name) for name in ("save", "export")),
        *(seconds(resumed, name) for name in ("bring_up", "load")),
    ]


def eight() -> str:
    """The tables of the cases of eight GPUs."""
    found = cases(eight=True)
    if not found:
        return "Not taken."
    memory_head = ["case", "predicted", "allocator, all ranks", "reserved", "driver"]
    memory_head += ["host predicted", "host more than before"]
    speed_head = ["case", "steps", "sync", "rollout", "log-probabilities", "update", "step"]
    speed_head += ["tokens/s/GPU", "MFU of the update"]
    files_head = ["case", "model", "bring-up", "loading", "first sync", "sync", "checkpoint predicted"]
    files_head += ["weights + rest", "save", "of it export", "resume: bring-up", "loading"]
    ended = [f"`{case['case']}`: exit code {case['rc']}, {len(case['steps'])} steps" for case in found]
    return "\n\n".join(
        [
            "GiB:",
            table(memory_head, [ranks_row(case) for case in found]),
            "Seconds of a step, without the first and the last:",
            table(speed_head, [speed_row(case) for case in found]),
            "Seconds, and GiB of the checkpoint:",
            table(files_head, [files_row(case) for case in found]),
            "; ".join(ended) + ".",
        ]
    )


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
        "eight": eight(),
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
