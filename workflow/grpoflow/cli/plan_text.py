"""The plan for people: aligned tables, memory as bars against the capacity of the GPU."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpoflow.preflight.text import WIDTH, paint

GIB = 2**30
BAR = 40
FILLED, EMPTY = "█", "·"
TIGHT, FULL = 0.86, 0.92
LARGEST_ITEMS = 6


def plan_text(document: Mapping[str, Any], colour: bool = False) -> str:
    """The document of :func:`grpoflow.stages.plan.plan_document` as text."""
    parts = [
        paint(f"experiment {document['experiment']}", "bold", colour) + f"  run {document['run']}",
        *_problems(document, colour),
        *_section("batch", _batch(document["batch"]), colour),
        *_section("layout", _layout(document["layout"]), colour),
        *_section("placement", _placement(document["placement"]), colour),
        *_section("memory per GPU", _memory(document["memory"], colour), colour),
        *_section("time and cost (estimate)", _cost(document["cost"]), colour),
        *_section("stages", _stages(document["stages"]), colour),
    ]
    return "\n".join(parts)


def _section(title: str, lines: Iterable[str], colour: bool) -> list[str]:
    found = list(lines)
    return ["", paint(title, "bold", colour), *(f"  {line}" for line in found)]


def table(rows: Sequence[Sequence[object]]) -> list[str]:
    """Rows as lines: columns aligned, numbers to the right."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))] if cells else []
    lines = []
    for row, given in zip(cells, rows, strict=True):
        parts = [
            cell.rjust(width)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else cell.ljust(width)
            for cell, width, value in zip(row, widths, given, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def bar(used: int, capacity: int, colour: bool = False, *, planned: bool = False) -> str:
    """A bar of `used` against `capacity`; red above the share that is refused, yellow above the tight one.
    What is `planned` (vLLM takes the share it is told to) is green."""
    share = used / capacity
    filled = min(BAR, round(share * BAR))
    style = "ok" if planned or share <= TIGHT else "warn" if share <= FULL else "refuse"
    return paint(FILLED * filled, style, colour) + EMPTY * (BAR - filled)


def _problems(document: Mapping[str, Any], colour: bool) -> list[str]:
    lines = []
    for problem in document["problems"]:
        lines += [
            "",
            f"{paint(problem['level'], problem['level'], colour)}  {problem['key']}: {problem['why']}",
        ]
    for item in document["suppressed"]:
        lines += ["", f"off   {item['id']} ({item['key']}): {item['reason']}"]
    for item in document["skipped"]:
        lines += ["", f"skipped  {len(item['checks'])} checks: {item['why']}"]
    return lines


def _batch(batch: Mapping[str, Any] | None) -> list[str]:
    if batch is None:
        return ["not known before the layout is"]
    steps = batch["train_steps"]
    return table(
        [
            ("global batch", batch["global_batch_size"], "completions per optimizer step"),
            ("micro batch", batch["micro_batch_size"], f"x {batch['dp_size']} data-parallel groups x "
             f"{batch['gradient_accumulation']} accumulated"),
            ("rollout", batch["generation_batch_size"], f"completions: {batch['rollout_prompts']} prompts x "
             f"{batch['num_generations']}"),
            ("per rank", batch["completions_per_rank"], "completions per rollout"),
            ("updates", f"{batch['updates_per_rollout']:g}", "optimizer steps per rollout"),
            ("steps", "?" if steps is None else steps, "optimizer steps in all"),
        ]
    )  # fmt: skip


def _layout(layouts: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, layout in layouts.items():
        if layout["backend"] == "swift":
            lines.append(f"{name}: swift, {layout['world_size']} ranks, DeepSpeed {layout['deepspeed']}")
        elif "tp" not in layout:
            lines.append(f"{name}: megatron, {layout['world_size']} ranks, {layout['why']}")
        else:
            sizes = " ".join(f"{key.upper()} {layout[key]}" for key in ("tp", "pp", "cp", "ep", "etp"))
            lines.append(
                f"{name}: megatron, {layout['world_size']} ranks, {sizes}, DP {layout['dp_size']}, "
                f"expert DP {layout['edp_size']} ({layout['chosen']})"
            )
        if layout.get("alternatives"):
            rows = [
                ("", alternative["layout"], f"{alternative['peak_bytes'] / GIB:.1f} GiB",
                 f"{alternative['step_seconds']} s", "" if alternative["fits"] else "does not fit")
                for alternative in layout["alternatives"][:5]
            ]  # fmt: skip
            lines += [f"  {layout['reason']}", "  alternatives:", *table(rows)]
    return lines


def _placement(placement: Mapping[str, Any]) -> list[str]:
    rows = []
    for node in placement["nodes"]:
        for role in node["roles"]:
            gpus = role["gpus"]
            if role["kind"] == "trainer":
                last = role["first_rank"] + role["nproc_per_node"] - 1
                detail = f"ranks {role['first_rank']}-{last}"
                if node["index"] == placement["sync_client_node"]:
                    detail += ", sends the weights"
            else:
                detail = f"TP {role['tp']} x DP {role['dp']}"
            rows.append((f"node {node['index']}", role["name"], f"GPU {gpus[0]}-{gpus[-1]}", detail))
    return table(rows)


def _memory(memory: Mapping[str, Any] | None, colour: bool) -> list[str]:
    if memory is None:
        return ["not known: it needs config.json of the checkpoint, and a GPU"]
    capacity = memory["gpu"]["bytes"]
    lines = [f"{memory['gpu']['name']}, {capacity / GIB:.1f} GiB; the estimate is a lower bound"]
    roles = [*(("", rank) for rank in memory["trainer"]), *(("sft: ", rank) for rank in memory["sft"])]
    if "items" in memory["rollout"]:
        roles.insert(len(memory["trainer"]), ("", memory["rollout"]))
    width = max(len(prefix + rank["role"]) for prefix, rank in roles) if roles else 0
    for prefix, rank in roles:
        used = rank["peak_bytes"]
        name = f"{prefix}{rank['role']}".ljust(width)
        host = f", host {rank['host_bytes'] / GIB:.1f} GiB" if rank["host_bytes"] else ""
        drawn = bar(used, capacity, colour, planned=rank is memory["rollout"])
        lines.append(
            f"{name}  {drawn}  {used / GIB:5.1f} GiB {used / capacity:4.0%} in the "
            f"{rank['peak_phase']} phase{host}"
        )
        held = [
            item for item in rank["items"] if item["where"] == "gpu" and rank["peak_phase"] in item["phases"]
        ]
        largest = sorted(held, key=lambda item: -item["bytes"])[:LARGEST_ITEMS]
        items = ", ".join(f"{item['name']} {item['bytes'] / GIB:.1f}" for item in largest)
        lines.append(f"{' ' * width}  {items}")
    rollout = memory["rollout"]
    lines.append(
        f"KV cache of an engine: {rollout['kv_tokens']:,} tokens, {rollout['concurrency']:.2f} sequences of "
        f"full length at once; max_num_seqs at most {rollout['largest_max_num_seqs']}"
    )
    return lines + textwrap.wrap(f"not modelled: {'; '.join(memory['not_modelled'])}", WIDTH)


def _cost(cost: Mapping[str, Any]) -> list[str]:
    if not cost["phases"]:
        return ["not known: it needs config.json of the checkpoint, and a GPU"]
    per_cycle = sum(phase["seconds"] for phase in cost["phases"])
    rows = [
        (
            phase["name"],
            f"{phase['seconds']:.1f} s",
            f"{phase['seconds'] / per_cycle:4.0%}",
            phase["assumption"],
        )
        for phase in cost["phases"]
    ]
    lines = table(rows)
    for name, stage in cost["stages"].items():
        hours = "?" if stage["gpu_hours"] is None else f"{stage['gpu_hours']:g}"
        steps = "?" if stage["steps"] is None else stage["steps"]
        lines.append(
            f"{name}: {steps} steps x {stage['step_seconds']} s on {stage['gpus']} GPUs = {hours} GPU-hours"
        )
    if cost["disk"]:
        disk = {name: f"{size / 1e9:.0f} GB" for name, size in cost["disk"].items()}
        lines.append(f"disk: {disk['per_checkpoint_bytes']} per checkpoint, {disk['peak_bytes']} at the peak")
    return lines


def _stages(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for stage in stages:
        size = "no GPU"
        if gpus := stage["gpus_per_node"]:
            memory = stage["host_memory_mib"] / 1024
            size = f"{stage['nodes']} x {gpus} GPUs, {memory:.0f} GiB of host memory on each node"
        lines.append(f"{stage['name']} ({size})")
        shown = set()
        for command in stage["commands"]:
            text = _command(command["argv"])
            if text not in shown:  # the ranks of a trainer differ in their environment only
                shown.add(text)
                lines += [f"  {line}" for line in text.splitlines()]
    return lines


def _command(argv: Sequence[str]) -> str:
    """One option a line; programs by their name."""
    words = [Path(argv[0]).name, *argv[1:]]
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    first, *options = (" ".join(line) for line in lines)
    return "\n".join([first, *(f"  {option}" for option in options)])
