"""Stages rollout_server and train_grpo: two views of one job (see grpoflow.launch)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from grpoflow import metrics
from grpoflow.config.base import keys_of_kind
from grpoflow.config.identity import convergence_keys, digest
from grpoflow.files import create_once, fingerprint, read_json, write_json
from grpoflow.launch.completion import TrainingIncomplete, verify_training
from grpoflow.launch.ensure import ensure_allocation
from grpoflow.launch.job import Job
from grpoflow.launch.parent import Ancestors
from grpoflow.launch.run import Launch, RunDirectory
from grpoflow.plan.inputs import placement_of

from .base import Stage, StageFailed, manifest_of
from .convert import start_directory
from .dag import RESULTS

POLL_SECONDS = 2.0


class DriverOrphaned(Exception):
    """Snakemake has ended without telling this stage to stop. The job goes on."""


def rollout_server(stage: Stage) -> None:
    """Start the RL job, or find it, and wait until its rollout servers are ready.

    Raises:
        StageFailed: the job ended before.
    """
    run, launch = _run(stage)
    job = ensure_allocation(run, launch, _launcher(stage), stage.resources)
    if job is None:
        write_json(stage.output, stage.manifest(run=run.path.name, servers=[], state="training is complete"))
        return
    _wait(stage, run, job, until_ready=True)
    allocation = read_json(run.allocation)
    write_json(
        stage.output,
        stage.manifest(
            run=run.path.name, job_id=job.id, servers=allocation["servers"], model=str(launch.start)
        ),
    )


def train_grpo(stage: Stage) -> None:
    """Wait for the RL job and verify what it trained.

    Raises:
        StageFailed: the job ended and the training is not complete.
    """
    run, launch = _run(stage)
    job = ensure_allocation(run, launch, _launcher(stage), stage.resources)
    if job is not None:
        _wait(stage, run, job, until_ready=False)
    try:
        final = verify_training(stage.config, run.output)
    except TrainingIncomplete as error:
        raise StageFailed(f"{_cause(run)}\n{error}") from error
    steps = metrics.read_steps(run.output / "logging.jsonl")
    write_json(
        stage.output,
        stage.manifest(
            run=run.path.name,
            directory=str(run.path),
            checkpoint=str(run.output / final.path.name),
            step=final.step,
            start=str(launch.start),
            reward=_reward_gain(steps),
        ),
    )


def _run(stage: Stage) -> tuple[RunDirectory, Launch]:
    """The run that this configuration and its inputs make up."""
    config = stage.config
    start = start_directory(stage)
    dataset = Path(stage.input["dataset"]).parent / "train.jsonl"
    mcore = stage.input.get("mcore")
    checkpoint = Path(mcore).parent / str(manifest_of(mcore)["checkpoint"]) if mcore else None
    identity: dict[str, Any] = {
        "convergence": convergence_keys(config),
        "start": fingerprint(start),
        "dataset": manifest_of(stage.input["dataset"])["sha256"],
    }
    run = RunDirectory((RESULTS / stage.subject / "runs" / digest(identity)).absolute())
    create_once(run.identity, {**identity, "layout": keys_of_kind(config, "layout")})
    logs = Path(stage.logs)
    launch = Launch(
        experiment=stage.subject,
        config=config,
        placement=placement_of(config),
        start=start.absolute(),
        mcore=checkpoint and checkpoint.absolute(),
        dataset=dataset.absolute(),
        logs=logs.absolute(),
    )
    return run, launch


def _launcher(stage: Stage) -> str:
    """Raises: StageFailed: the profile does not say where the RL job is to run."""
    launcher = str(stage.resources.get("launcher", ""))
    if launcher not in ("slurm", "local"):
        raise StageFailed(
            f"resource launcher is {launcher!r}; use --profile slurm or --profile profiles/local, "
            "or --default-resources launcher=local"
        )
    return launcher


def _wait(stage: Stage, run: RunDirectory, job: Job, *, until_ready: bool) -> None:
    """Wait for the servers, or for the end of the job. Only Ctrl-C cancels it.

    Raises:
        StageFailed: the servers were waited for and the job ended.
        DriverOrphaned: Snakemake died.
    """
    ancestors = Ancestors()
    said = ""
    try:
        while True:
            state = job.state()
            allocation = _allocation(run, job)
            text = f"job {job.id}: {allocation.get('state', state) if state == 'running' else state}"
            if not until_ready:
                text += f"  {metrics.progress(run.output / 'logging.jsonl')}"
            if text != said:
                said = text
                stage.say(text)
            if until_ready and allocation.get("servers") and state == "running":
                return
            if state == "gone":
                break
            if not ancestors.are_alive():
                raise DriverOrphaned(f"Snakemake has ended; job {job.id} goes on")
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        stage.say(f"cancelling job {job.id}")
        job.cancel()
        while job.state() != "gone":
            time.sleep(POLL_SECONDS)
        raise
    if until_ready:
        raise StageFailed(_cause(run))


def _cause(run: RunDirectory) -> str:
    allocation = read_json(run.allocation) if run.allocation.is_file() else {}
    status, cause = allocation.get("state"), allocation.get("cause", "the job left no cause")
    return f"job {allocation.get('job_id')} ({status}): {cause}"


def _allocation(run: RunDirectory, job: Job) -> dict[str, Any]:
    """What the job says of itself; nothing while it has not started."""
    allocation: dict[str, Any] = read_json(run.allocation) if run.allocation.is_file() else {}
    return allocation if allocation.get("job_id") == job.id else {}


def _reward_gain(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Mean reward of the first and of the last tenth of the steps."""
    rewards = [float(step["reward"]) for step in steps if "reward" in step]
    tenth = max(1, len(rewards) // 10)
    first, last = sum(rewards[:tenth]) / tenth, sum(rewards[-tenth:]) / tenth
    return {"first_tenth": first, "last_tenth": last, "gain": last - first}
