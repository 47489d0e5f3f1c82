"""Stages rollout_server and train_grpo: two views of one job (see grpoflow.launch)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpoflow import metrics
from grpoflow.config.base import keys_of_kind
from grpoflow.config.identity import convergence_keys, digest
from grpoflow.files import create_once, fingerprint, read_json, sha256, write_json
from grpoflow.launch.completion import TrainingIncomplete, verify_training
from grpoflow.launch.driver import Driver
from grpoflow.launch.run import RESULTS, Launch, RunDirectory
from grpoflow.plan.inputs import placement_of

from .allocation import launcher_of
from .base import Stage, StageFailed, manifest_of
from .convert import start_directory
from .dataset import frozen_dataset


def rollout_server(stage: Stage) -> None:
    """Start the RL job, or find it, and wait until its rollout servers are ready.

    Raises:
        JobFailed: the job ended before.
    """
    with _driver(stage) as driver:
        job = driver.ensure_allocation()
        facts: dict[str, Any] = {"run": driver.run.path.name, "servers": [], "state": "training is complete"}
        if job is not None:
            allocation = driver.wait(job, until_ready=True)
            facts = {
                "run": driver.run.path.name,
                "job_id": allocation.get("job_id"),
                "servers": allocation.get("servers", []),
                "model": str(driver.launch.start),
            }
        write_json(stage.output, stage.manifest(**facts))


def train_grpo(stage: Stage) -> None:
    """Wait for the RL job and verify what it trained.

    Raises:
        JobFailed: the job ended and the training is not complete.
        StageFailed: the training is not what it must be, or the servers belong to another run.
    """
    with _driver(stage) as driver:
        _check_servers(stage, driver.run)
        job = driver.ensure_allocation()
        if job is not None:
            driver.wait(job, until_ready=False)
        run = driver.run
        try:
            final = verify_training(stage.config, run.output)
        except TrainingIncomplete as error:
            raise StageFailed(str(error)) from error
        steps = metrics.read_steps(run.log)
        write_json(
            stage.output,
            stage.manifest(
                run=run.path.name,
                directory=str(run.path),
                checkpoint=str(run.output / final.path.name),
                step=final.step,
                start=str(driver.launch.start),
                reward=_reward_gain(steps),
                alarms=read_json(run.alarms) if run.alarms.is_file() else [],
            ),
        )


def _check_servers(stage: Stage, run: RunDirectory) -> None:
    """Refuse to submit a second job because a reward plugin was edited while the servers started."""
    if not stage.input.get("endpoints"):
        return  # colocate
    served = manifest_of(stage.input["endpoints"])
    if served["run"] != run.path.name:
        raise StageFailed(
            f"job {served.get('job_id')} serves run {served['run']}, and this is run {run.path.name}: the "
            "reward plugin, the data or the starting checkpoint was changed in between. End that job with "
            "`grpoflow cancel` and start Snakemake again, or undo the change"
        )


def _driver(stage: Stage) -> Driver:
    run, launch = _run(stage)
    return Driver(run, launch, launcher_of(stage.resources), stage.resources, stage.say)


def _run(stage: Stage) -> tuple[RunDirectory, Launch]:
    """The run that this configuration and its inputs make up."""
    config = stage.config
    start = start_directory(stage)
    prompts = "grpo/train" if config.data.grpo_cached else "train.jsonl"
    dataset = Path(stage.input["dataset"]).parent / prompts
    mcore = stage.input.get("mcore")
    name = manifest_of(mcore)["checkpoint"] if mcore else None  # none either with convert.mode: direct
    checkpoint = Path(mcore).parent / name if mcore and name else None
    frozen = frozen_dataset(stage)
    identity: dict[str, Any] = {
        "convergence": convergence_keys(config),
        "start": fingerprint(start),
        "dataset": frozen["sha256"],
        # the name of a file says nothing of the rewards that it gives
        "plugin": config.rewards.plugin and sha256(Path(config.rewards.plugin)),
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
        response_prefix=str(frozen["template"]["response_prefix"] or ""),
    )
    return run, launch


def _reward_gain(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Mean reward of the first and of the last tenth of the steps."""
    rewards = [float(step["reward"]) for step in steps if "reward" in step]
    tenth = max(1, len(rewards) // 10)
    first, last = sum(rewards[:tenth]) / tenth, sum(rewards[-tenth:]) / tenth
    return {"first_tenth": first, "last_tenth": last, "gain": last - first}
