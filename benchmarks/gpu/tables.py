"""Turn the result files into docs/measurements.md: `python benchmarks/gpu/tables.py`.

results/cases/*.json are written by run_case.py, results/dag/*.json by collect.py. A test makes sure that the
page is what this program makes of the files.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from grpoflow.config import Config
from grpoflow.models.architecture import Architecture
from grpoflow.models.counts import flops_per_token
from grpoflow.plan.hardware import gpu_named
from grpoflow.plan.inputs import vllm_spec
from grpoflow.plan.kv_cache import kv_cache
from grpoflow.plan.memory import RankMemory, host_bytes_per_node
from grpoflow.preflight.estimate import disk
from grpoflow.preflight.subject import Subject
from predict import configuration_of_result, plan_of, plan_of_result

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "measurements.md"
GIB = 2**30
FILLED = 0.98  # least share of data.max_length that the rows of run_case.py fill
EIGHT, SPEED, ONE, FLA = KINDS = ("eight-", "speed-", "one-", "fla-")
"""How the names of the cases begin that have tables of their own: eight GPUs, speed on two and on one,
versions of fla."""
COMPARED = {
    "Megatron against `swift rlhf`": ("speed-colocate", "speed-zero3", "speed-zero2", "speed-ddp"),
    "Server against colocate": ("speed-colocate", "speed-server"),
    "CUDA graphs in vLLM": ("speed-server", "speed-server-graphs"),
    "Packed rows": ("speed-colocate", "speed-colocate-packed"),
    "Steps of one rollout": ("speed-colocate", "speed-colocate-2-steps", "speed-colocate-4-steps"),
    "Mixture of experts": ("speed-moe-ep2", "speed-moe-zero3"),
    "One GPU": (
        *("one-colocate", "one-swift", "one-zero3", "one-eager", "one-packed", "one-recompute", "one-awake"),
        *("one-2-steps", "one-4-steps"),
    ),
    "One GPU, 9B with an adapter": ("one-9b-lora", "one-9b-lora-swift"),
    "One GPU, 4B": ("one-4b-full",),
    "One GPU, mixture of experts": ("one-moe", "one-moe-swift"),
}
"""Cases of speed by what they compare; the first of each is what the others are compared with."""
VERSIONS = ("fla-0.4.2", "fla-0.4.1", "fla-0.6.0", "fla-none")
OPTIONAL = ("fla-core", "deepspeed")
"""Packages that not every environment has."""
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


def cases(kind: str = "") -> list[dict[str, Any]]:
    """Results of the cases of a kind, or of those of none: they are about memory."""
    paths = sorted((RESULTS / "cases").glob("*.json"))
    return [read(p) for p in paths if (p.name.startswith(kind) if kind else not p.name.startswith(KINDS))]


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
    predicted = held(rank, "update")
    if not case["steps"]:
        predicted -= sum(i.bytes for i in rank.items if i.name == "optimizer" and i.where == "gpu") * 8 // 12
    if engine is not None and "server_driver_peak_mib" not in case:
        asleep = {item.name: item.bytes for item in engine.rank.items}
        if not any(item.name == "vLLM weights" and "update" in item.phases for item in rank.items):
            predicted += asleep["vLLM weights"] + asleep["KV cache"] + asleep["GDN states"]
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


# --- vLLM ---

SAYS = {
    "weights": re.compile(r"Model loading took ([\d.]+) GiB"),
    "pool": re.compile(r"Available KV cache memory: ([\d.]+) GiB"),
    "block": re.compile(r"Setting attention block size to (\d+) tokens"),
    "tokens": re.compile(r"GPU KV cache size: ([\d,]+) tokens"),
}
"""What vLLM 0.23 says of its memory when it starts."""


def said(case: dict[str, Any]) -> dict[str, float]:
    """The numbers of vLLM's start-up log."""
    found = {name: pattern.search("\n".join(case["engine"])) for name, pattern in SAYS.items()}
    return {name: float(match[1].replace(",", "")) for name, match in found.items() if match}


def engine_row(case: dict[str, Any]) -> Row:
    """Plan and log of an engine; `tokens` twice: as the plan has them, and of the pool that the log names."""
    log, engine = said(case), plan_of_result(case)[1]
    assert engine is not None
    with configuration_of_result(case) as config:
        spec = vllm_spec(config)
    planned = {item.name: item.bytes for item in engine.rank.items}
    arch = Architecture.from_config(case["model_config"])
    cache = kv_cache(arch, spec.tp, int(log["pool"] * GIB), prefix_caching=spec.prefix_caching)
    pool = planned["KV cache"] + planned["GDN states"]
    return [
        case["case"],
        f"{planned['vLLM weights'] / GIB:.2f} / {log['weights']:.2f}",
        f"{pool / GIB:.1f} / {log['pool']:.1f}",
        f"{pool / GIB / log['pool'] - 1:+.0%}",
        f"{cache.block_tokens} / {log['block']:.0f}",
        f"{cache.tokens(spec.max_model_len):,} / {log['tokens']:,.0f}",
        f"{engine.kv_tokens:,}",
    ]


def engines() -> str:
    """vLLM's start-up log against the plan, of the cases whose engine chose its memory itself."""
    head = ["case", "weights, plan / log", "KV cache and GDN states, plan / log", "error"]
    head += ["tokens of a block, plan / log", "tokens, plan of the log's GiB / log", "tokens, plan"]
    return table(head, [engine_row(case) for case in cases(ONE) if len(said(case)) == len(SAYS)])


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
    known = case.get("row_tokens")
    prompt = sum(known) / len(known) if known else FILLED * config.data.max_length
    return float(config.trainer.global_batch_size * (prompt + sum(lengths) / len(lengths)))


def step_of(case: dict[str, Any]) -> float:
    """Seconds of a step: what is done once or seldom is no part of it."""
    other = ("steps", "median", "load", "save", "export")
    return float(sum(seconds for name, seconds in case["seconds_per_step"].items() if name not in other))


def timed(case: dict[str, Any]) -> bool:
    """Whether a case came far enough for the seconds of a step."""
    return "update" in case["seconds_per_step"] and bool(case["steps"])


PHASES = ("sync", "rollout", "logps", "update")
SPEED_HEAD = ["case", "steps", "sync", "rollout", "log-probabilities", "update", "rest", "step"]
SPEED_HEAD += ["tokens/s/GPU", "MFU of the update"]


def speed_row(case: dict[str, Any]) -> Row:
    """Seconds of a step by phase, tokens per second and GPU of the whole step, and the share of the BF16 peak
    of the trainer's GPUs that the update reaches. Recomputation does not count."""
    if not timed(case):
        return [case["case"], "0", *["not taken"] * (len(SPEED_HEAD) - 2)]
    split, whole = case["seconds_per_step"], step_of(case)
    with configuration_of_result(case) as config:
        tokens = tokens_per_step(case, config)
        gpu, trainer = gpu_named(config.cluster.gpu), config.trainer
    length = int(tokens / trainer.global_batch_size)
    flops = flops_per_token(Architecture.from_config(case["model_config"]))
    work = tokens * flops.train(length, frozen=trainer.tuner == "lora")
    peak = len(case["allocator"]) * gpu.bf16_flops
    return [
        case["case"],
        str(split["steps"]),
        *(f"{split[name]:.1f}" if name in split else "none" for name in PHASES),
        f"{whole - sum(split.get(name, 0.0) for name in PHASES):.1f}",
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
    found = cases(EIGHT)
    if not found:
        return "Not taken."
    memory_head = ["case", "predicted", "allocator, all ranks", "reserved", "driver"]
    memory_head += ["host predicted", "host more than before"]
    files_head = ["case", "model", "bring-up", "loading", "first sync", "sync", "checkpoint predicted"]
    files_head += ["weights + rest", "save", "of it export", "resume: bring-up", "loading"]
    return "\n\n".join(
        [
            "GiB:",
            table(memory_head, [ranks_row(case) for case in found]),
            "Seconds of a step, without the first and the last:",
            table(SPEED_HEAD, [speed_row(case) for case in found]),
            "Seconds, and GiB of the checkpoint:",
            table(files_head, [files_row(case) for case in found]),
            ended(found),
        ]
    )


# --- speed ---


def times_of(mine: float, first: float, case: dict[str, Any], other: dict[str, Any]) -> str:
    """Seconds divided by those of the first row: above 1 is slower. Only of runs on one machine, and with a
    note where other programs used its GPUs."""
    if case["machine"] != other["machine"]:
        return "another machine"
    shared = case["other_processes"] or other["other_processes"]
    return f"{mine / first:.2f}" + (", not alone" if shared else "")


def base_of(case: dict[str, Any], firsts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The result of the first row that a result is compared with: that of its machine, if there is one."""
    of_this_machine = [first for first in firsts if first["machine"] == case["machine"]]
    return next(iter(of_this_machine + firsts), None)


def compared_row(case: dict[str, Any], firsts: list[dict[str, Any]]) -> Row:
    """A row of speed, and its step and update against those of the first row of its table."""
    row, other = speed_row(case), base_of(case, firsts)
    if other is None or not timed(case) or not timed(other):
        return [*row, "not taken", "not taken"]
    updates = [result["seconds_per_step"]["update"] for result in (case, other)]
    return [
        *row,
        times_of(step_of(case), step_of(other), case, other),
        times_of(updates[0], updates[1], case, other),
    ]


def compared_rows(names: tuple[str, ...], found: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """The rows of a table, machine by machine; a case without a result is a row all the same."""
    taken = [case for name in names for case in found.get(name, [])]
    machines = list(dict.fromkeys(tuple(case["machine"]) for case in taken))
    taken.sort(key=lambda case: machines.index(tuple(case["machine"])))
    rows = [compared_row(case, found.get(names[0], [])) for case in taken]
    return rows + [[name, "not taken", *[""] * len(SPEED_HEAD)] for name in names if name not in found]


FLA_HEAD = ["case", "fla-core", "first step", "rest of the first pass", "later pass", "tokens/s, later"]
FLA_HEAD += ["MFU, later", "rest of the first pass over first row", "later pass over first row"]


def passes(case: dict[str, Any]) -> tuple[float, float] | None:
    """Seconds of the first pass over the rows without its first step, where most kernels are made, and the
    mean of the later passes that are complete."""
    rows, seconds = len(case["row_tokens"]), case["step_seconds"]
    whole = [sum(seconds[place : place + rows]) for place in range(0, len(seconds) - rows + 1, rows)]
    return (whole[0] - seconds[0], sum(whole[1:]) / (len(whole) - 1)) if len(whole) > 1 else None


def fla_row(name: str, found: dict[str, list[dict[str, Any]]]) -> Row:
    """Seconds of the passes of a case of fla, rate and MFU of the later ones, and the passes over those of
    the first row."""
    (case, *_), (other, *_) = found.get(name, [None]), found.get(VERSIONS[0], [None])
    took = passes(case) if case else None
    if case is None or took is None:
        return [name, "not taken", *[""] * (len(FLA_HEAD) - 2)]
    with configuration_of_result(case) as config:
        gpu = gpu_named(config.cluster.gpu)
    flops = flops_per_token(Architecture.from_config(case["model_config"]))
    work = sum(tokens * flops.train(tokens) for tokens in case["row_tokens"])
    row = [
        name,
        case["versions"].get("fla-core", "none"),
        f"{case['step_seconds'][0]:.1f}",
        *(f"{seconds:.2f}" for seconds in took),
        f"{sum(case['row_tokens']) / took[1]:,.0f}",
        f"{work / took[1] / gpu.bf16_flops:.1%}",
    ]
    base = passes(other) if other else None
    if other is None or base is None:
        return [*row, "not taken", "not taken"]
    return [*row, *(times_of(mine, first, case, other) for mine, first in zip(took, base, strict=True))]


def speed() -> str:
    """The tables of the cases of speed and of fla; what has no result is a row all the same."""
    taken = cases(ONE) + cases(SPEED) + cases(FLA)
    found: dict[str, list[dict[str, Any]]] = {}
    for case in taken:
        found.setdefault(case["case"], []).append(case)
    head = [*SPEED_HEAD, "step over first row", "update over first row"]
    parts = []
    for title, names in COMPARED.items():
        parts += [f"{title}:", table(head, compared_rows(names, found))]
    versions = table(FLA_HEAD, [fla_row(name, found) for name in VERSIONS])
    parts += ["Versions of fla in Megatron SFT, 5 rows of different lengths in each pass:", versions]
    if taken:
        parts += [software(taken[0]), ended(taken)]
    return "\n\n".join(parts)


def ended(found: list[dict[str, Any]]) -> str:
    """How the runs ended, and which optional packages they had."""
    lines = []
    for case in found:
        versions = [f"{name} {case['versions'][name]}" for name in OPTIONAL if name in case["versions"]]
        steps = f"exit code {case['rc']}, {len(case['steps'])} steps"
        lines.append(f"`{case['case']}`: {', '.join([steps, *versions])}")
    return "; ".join(lines) + "."


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
    return software(done[0])


def software(case: dict[str, Any]) -> str:
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
        "engines": engines(),
        "speed": speed(),
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
