"""From a Snakemake job to a stage."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from grpoflow.checkpoints import CheckpointError
from grpoflow.files import new_log_directory
from grpoflow.launch.driver import DriverOrphaned, JobFailed
from grpoflow.launch.gang import GangFailed
from grpoflow.launch.job import SubmissionFailed
from grpoflow.launch.process import ProgramFailed
from grpoflow.launch.resume import ResumeRefused
from grpoflow.plan.problem import PlanError

from .base import Stage, StageFailed, fail
from .benchmarks import benchmarks
from .convert import convert_to_mcore
from .dag import LOGS, Dag
from .dataset import cache_dataset, cache_sft
from .demo import demo_data, demo_model
from .evaluate import evaluate
from .export import export_hf
from .needs import RL_RULES
from .preflight import preflight
from .probe import probe_nodes
from .report import report
from .rl import rollout_server, train_grpo
from .sft import sft

STAGES: dict[str, Callable[[Stage], None]] = {
    "demo_data": demo_data,
    "demo_model": demo_model,
    "probe_nodes": probe_nodes,
    "preflight": preflight,
    "cache_dataset": cache_dataset,
    "cache_sft": cache_sft,
    "sft": sft,
    "convert_to_mcore": convert_to_mcore,
    "rollout_server": rollout_server,
    "train_grpo": train_grpo,
    "benchmarks": benchmarks,
    "evaluate": evaluate,
    "export_hf": export_hf,
    "report": report,
}
EXPECTED = (
    *(StageFailed, ProgramFailed, CheckpointError, PlanError),
    *(SubmissionFailed, ResumeRefused, JobFailed, GangFailed, DriverOrphaned),
)


def run(job: Any) -> int:
    """Run the stage of a Snakemake job; return the exit code.

    `job` is the object that Snakemake gives to a script: rule, wildcards, input, output, log, resources and
    the merged configuration.
    """
    subject = next((str(value) for _, value in job.wildcards.items()), "-")
    log = Path(job.log[0]) if job.log else None
    dag = Dag(job.config)
    stage = Stage(
        name=job.rule,
        subject=subject,
        config=dag.config(job.wildcards),
        input=dict(job.input.items()),
        output=Path(job.output[0]),
        logs=_logs(job.rule, subject),
        resources=dict(job.resources.items()),
        is_driver=job.rule in dag.wide_rules and job.resources.get("launcher") == "slurm",
    )
    if not stage.is_driver and stage.name not in RL_RULES:
        # scancel, preemption, the wall-time: what an attempt has written can be as large as the model
        signal.signal(signal.SIGTERM, _end)
    try:
        STAGES[job.rule](stage)
    except EXPECTED as error:
        return fail(stage.name, stage.subject, str(error), log)
    except KeyboardInterrupt:
        print(f"[{stage.name} {stage.subject}] interrupted", file=sys.stderr, flush=True)
        return 130
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{stage.name} {stage.subject}: done, logs in {stage.logs}\n", encoding="utf-8")
    return 0


def _end(number: int, _: FrameType | None) -> None:
    """Leave by way of everything that cleans up; a second signal does not interrupt that."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _logs(rule: str, subject: str) -> Path:
    if rule in RL_RULES:
        return LOGS / subject / "train_grpo"  # each attempt of the job claims a directory in it
    return new_log_directory(LOGS / subject / rule)
