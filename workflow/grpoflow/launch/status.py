"""`grpoflow status` and `grpoflow cancel`: what the jobs of this working directory do, and ending them.

Everything is read from the run directories and from Slurm, so both work while no Snakemake runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from grpoflow.checkpoints import newest_checkpoint
from grpoflow.files import read_json
from grpoflow.metrics import read_steps

from . import slurm
from .job import Job, end_job, has_ended, live_slurm_job, recorded_job
from .run import RESULTS, Launch, RunDirectory

NOTHING, UNKNOWN = 1, 2


def main(experiment: str | None = None, form: str = "text") -> int:
    """Print the state of the RL job of one experiment, or of all; return 2 when there is none."""
    found = runs(experiment)
    if not found:
        return _none(experiment)
    states = [collect(run) for run in found]
    if form == "json":
        print(json.dumps(states, indent=2, ensure_ascii=False))
    else:
        print("\n\n".join("\n".join(render(state)) for state in states))
    return 0


def cancel(experiment: str | None = None) -> int:
    """Cancel the RL job of one experiment, or of all, and wait for its end.

    Returns 0, 1 when a job did not end in time, 2 when there is no run of that name.
    """
    found = runs(experiment)
    if not found:
        return _none(experiment)
    code = 0
    for run in found:
        job = _live(run)
        if job is None:
            print(f"{_name(run)}: no job")
            continue
        ended = end_job(run, job)
        print(f"{_name(run)}: job {job.id} {'is cancelled' if ended else 'is still there'}")
        code = code if ended else NOTHING
    return code


def runs(experiment: str | None) -> list[RunDirectory]:
    """The run of each experiment (or of one) that a job worked on last."""
    latest: dict[str, tuple[float, RunDirectory]] = {}
    for path in RESULTS.glob(f"{experiment or '*'}/runs/*/job.json"):
        run = RunDirectory(path.parent.absolute())
        stamp = max(p.stat().st_mtime for p in (run.job, run.allocation) if p.is_file())
        if stamp > latest.get(_name(run), (0.0, run))[0]:
            latest[_name(run)] = (stamp, run)
    return [latest[name][1] for name in sorted(latest)]


def collect(run: RunDirectory) -> dict[str, Any]:
    """Everything that is known of a run, as plain data; what is not known is None."""
    launch = Launch.read(run.launch)
    allocation = read_json(run.allocation) if run.allocation.is_file() else {}
    steps = read_steps(run.log)
    newest = newest_checkpoint(run.output)
    return {
        "experiment": launch.experiment,
        "run": run.path.name,
        "job": _job(run),
        "attempt": allocation.get("attempt"),
        "state": allocation.get("state"),
        "cause": allocation.get("cause"),
        "why": allocation.get("why"),
        "nodes": _nodes(run, launch, allocation.get("attempt")),
        "logs": allocation.get("logs"),
        "checkpoint": newest.path.name if newest else None,
        "alarms": read_json(run.alarms) if run.alarms.is_file() else [],
        **_training(steps, launch),
    }


def render(state: Mapping[str, Any]) -> Iterable[str]:
    """The data of `collect` as lines for people."""
    job = state["job"]
    yield f"{state['experiment']}  run {state['run']}"
    parts = [f"{job['id']} ({job['launcher']}): {job['state']}"]
    parts += [f"reason {job['reason']}"] if job["reason"] else []
    parts += [f"ends in {duration(job['remaining'])}"] if job["remaining"] is not None else []
    yield _line("job", ", ".join(parts))
    if state["attempt"]:
        yield _line("attempt", f"{state['attempt']}: {state['state']}")
    if state["cause"] and state["state"] != "complete":
        cause = "\n".join([state["cause"], *([state["why"]] if state["why"] != state["cause"] else [])])
        yield _line("cause", cause.rstrip().replace("\n", f"\n{'':14}"))
    for node in state["nodes"]:
        yield _line("node", f"{node['host']}: {', '.join(node['roles'])}")
    if state["step"] is not None:
        metrics = [f"{name} {value:.4g}" for name, value in state["metrics"].items()]
        yield _line("step", "  ".join([f"{state['step']}/{state['max_steps']}", *metrics]))
    if state["step_seconds"]:
        speed = [f"{state['step_seconds']:.3g} s per step"]
        if state["tokens_per_second"]:
            speed.append(f"{state['tokens_per_second']:.4g} completion tokens/s")
        speed.append(f"{duration(state['seconds_to_end'])} to the last step")
        yield _line("speed", ", ".join(speed))
    for alarm in state["alarms"]:
        over = "" if alarm["last_step"] == state["step"] else f" to {alarm['last_step']}"
        yield _line("alarm", f"since step {alarm['step']}{over}: {alarm['gate']}: {alarm['message']}")
    yield _line("checkpoint", state["checkpoint"] or "none")
    if state["logs"]:
        yield _line("logs", state["logs"])


def duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes >= 48 * 60:
        return f"{minutes // 1440} d {minutes % 1440 // 60} h"
    return (
        f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {int(seconds % 60)} s"
    )


def _line(name: str, text: str) -> str:
    return f"  {name:<12}{text}"


def _name(run: RunDirectory) -> str:
    return run.path.parents[1].name


def _none(experiment: str | None) -> int:
    what = f"results/{experiment}/runs" if experiment else "results"
    print(f"grpoflow: no run with a job below {what}", file=sys.stderr)
    return UNKNOWN


def _live(run: RunDirectory) -> Job | None:
    """The job of the run that has not ended, recorded or not."""
    job = recorded_job(run)
    if job is None:
        return None
    try:
        if not has_ended(run, job):
            return job
        return live_slurm_job(run) if job.kind == "slurm" else None
    except slurm.NoAnswer:
        return job


def _job(run: RunDirectory) -> dict[str, Any]:
    job = recorded_job(run)
    if job is None:
        return {"id": None, "launcher": None, "state": "gone", "reason": "", "remaining": None}
    remaining = None
    if job.kind == "slurm":
        try:
            facts = slurm.job_facts(job.id)
        except slurm.NoAnswer:
            facts = None
        if facts is not None and facts.is_running and facts.end is not None:
            remaining = max(0.0, facts.end - time.time())
    found = {"id": job.id, "launcher": job.kind, "state": job.state(), "reason": job.reason()}
    if found["state"] == "running":
        found["reason"] = ""
    return {**found, "remaining": remaining}


def _nodes(run: RunDirectory, launch: Launch, attempt: str | None) -> list[dict[str, Any]]:
    """Each node of the allocation with its roles; the host is "-" while there is none."""
    found = []
    for node in launch.placement.nodes:
        path = run.path / "attempts" / str(attempt) / "nodes" / f"{node.index}.json"
        roles = [f"{role.name} (GPU {', '.join(map(str, role.gpus))})" for role in node.roles]
        found.append({"host": read_json(path)["host"] if path.is_file() else "-", "roles": roles})
    return found


def _training(steps: list[dict[str, Any]], launch: Launch) -> dict[str, Any]:
    if not steps:
        nothing = ("step", "max_steps", "step_seconds", "tokens_per_second", "seconds_to_end")
        return {**dict.fromkeys(nothing), "metrics": {}}
    last = steps[-1]
    seconds = float(last.get("train_speed(s/it)") or 0.0)
    tokens = launch.config.trainer.global_batch_size * float(last.get("completions/mean_length") or 0.0)
    return {
        "step": last["step"],
        "max_steps": last["max_steps"],
        "metrics": {name: last[name] for name in ("reward", "loss", "kl", "grad_norm") if name in last},
        "step_seconds": seconds or None,
        "tokens_per_second": tokens / seconds if seconds and tokens else None,
        "seconds_to_end": (last["max_steps"] - last["step"]) * seconds,
    }
