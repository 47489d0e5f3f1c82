"""The driver, with the stand-in's programs in jobs on this machine, or with a Slurm that is made up."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpoflow.files import read_json, write_json
from grpoflow.launch import driver as driver_module
from grpoflow.launch import job as job_module
from grpoflow.launch import node as node_module
from grpoflow.launch import slurm
from grpoflow.launch.completion import verify_training
from grpoflow.launch.driver import Driver, DriverOrphaned, JobFailed, cancel_job
from grpoflow.launch.gpus import take_gpus
from grpoflow.launch.job import LocalJob, SlurmJob, SubmissionFailed, record, recorded_job
from grpoflow.launch.leader import Leader
from grpoflow.launch.leftovers import writers
from grpoflow.launch.lock import DriverLock
from grpoflow.launch.processes import process_start
from grpoflow.launch.quality import refuse
from grpoflow.launch.run import AttemptKey, Launch, RunDirectory, Status
from grpoflow.launch.task import Task
from grpoflow.metrics import read_steps
from ranks import rank_of
from safetensors.numpy import save_file
from scene import Scene, launch

FAST = {"cluster": {"env": {"STANDIN_STEP": "0.15", "STANDIN_LOAD": "0.1", "STANDIN_INIT": "0.1"}}}
Made = tuple[RunDirectory, Launch]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    for pid in writers(map(str, tmp_path.glob("logs/main/train_grpo/attempt-*"))):
        os.kill(pid, signal.SIGKILL)


def driving(made: Made, said: list[str], launcher: str = "local") -> Driver:
    return Driver(*made, launcher, {}, said.append)


def processes(made: Made, *words: bytes) -> list[int]:
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in writers(made[0].log_directories())}
    return [pid for pid, line in lines.items() if all(word in line for word in words)]


def later(ready: Callable[[], Any], then: Callable[[], Any]) -> threading.Thread:
    """Do something as soon as it can be done."""

    def run() -> None:
        deadline = time.monotonic() + 30
        while not ready():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        then()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_run_on_this_machine_survives_the_death_of_its_trainer(scene: Scene) -> None:
    made, said = launch(scene, FAST), []
    run = made[0]
    later(
        lambda: len(read_steps(run.log)) >= 6,
        lambda: os.kill(rank_of(processes(made, b"trainer.py", b"--rlhf_type")), signal.SIGKILL),
    )
    with driving(made, said) as driver:
        job = driver.ensure_allocation()
        assert job is not None
        assert driver.wait(job, until_ready=True)["servers"]
        driver.wait(job, until_ready=False)
        assert verify_training(made[1].config, run.output).step == 12
        assert driver.ensure_allocation() is None
    first, second = run.attempts(run.jobs())
    assert read_json(first.end)["status"] == "failed"
    assert read_json(second.facts)["resume_step"] == 4
    assert any("SIGKILL" in text and "trying again" in text for text in said)
    assert not processes(made)
    assert not run.lock.exists()


def test_runs_on_this_machine_take_turns_on_its_gpus(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experiments of a sweep would load their weights onto the same GPUs."""
    monkeypatch.setenv("TMPDIR", str(scene.directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    on_gpus = {"cluster": {"device": "cuda", "gpu": "A800-SXM4-80GB", "gpus_per_node": 2}}
    endless = {"cluster": {"env": {"STANDIN_STEP": "600"}}}
    made, said = launch(scene, FAST, on_gpus, endless), []
    other = take_gpus(["5"])
    assert other is not None
    later(lambda: any("another run has GPU 4 or 5" in text for text in said), other.close)
    with driving(made, said) as driver:
        job = driver.ensure_allocation()
        assert job is not None
        assert driver.wait(job, until_ready=True)["servers"]
        assert take_gpus(["4"]) is None, said
        until = time.monotonic() + 30
        while not (trainers := processes(made, b"trainer.py", b"--rlhf_type")):
            assert time.monotonic() < until, said
            time.sleep(0.1)
        shown = Path(f"/proc/{trainers[-1]}/environ").read_bytes().split(b"\0")
        assert b"CUDA_VISIBLE_DEVICES=5" in shown
        cancel_job(made[0], driver.lock, said.append)
    assert any("another run has" in text for text in said)
    free = take_gpus(["4", "5"])
    assert free is not None
    free.close()


def test_an_interrupt_cancels_and_leaves_nothing(scene: Scene) -> None:
    made, said = launch(scene, FAST), []
    later(lambda: len(read_steps(made[0].log)) >= 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), driving(made, said) as driver:
        job = driver.ensure_allocation()
        assert job is not None
        driver.wait(job, until_ready=False)
    found = recorded_job(made[0])
    assert found is not None
    assert found.state() == "gone"
    assert not processes(made)
    assert said[-1] == f"job {found.id} is cancelled"


def test_what_never_trained_is_not_tried_again(scene: Scene) -> None:
    made, said = launch(scene, FAST, {"trainer": {"args": {"no_such_argument": 1}}}), []
    with driving(made, said) as driver, pytest.raises(JobFailed) as failed:
        job = driver.ensure_allocation()
        assert job is not None
        driver.wait(job, until_ready=False)
    text = str(failed.value)
    assert "trainer0 ended with exit code 1" in text
    assert "no_such_argument" in text
    assert "not tried again: nothing was trained yet" in text
    assert len(made[0].attempts(made[0].jobs())) == 1


def test_several_nodes_need_slurm(scene: Scene) -> None:
    made = launch(scene, {"rollout": {"nodes": 1, "gpus": None}})
    with driving(made, []) as driver, pytest.raises(SubmissionFailed, match="--profile slurm"):
        driver.ensure_allocation()


# a Slurm that is made up


class Queue:
    """What Slurm knows, for the functions of grpoflow.launch.slurm."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.jobs: dict[str, slurm.JobFacts] = {}
        self.answers = True
        self.submitted: list[str] = []
        monkeypatch.setattr(slurm, "job_facts", self.job_facts)
        monkeypatch.setattr(slurm, "jobs_with_comment", self.jobs_with_comment)
        monkeypatch.setattr(driver_module, "submit", self.submit)
        monkeypatch.setattr(driver_module, "POLL_SECONDS", 0.01)

    def job_facts(self, job: str, _: float = 0.0) -> slurm.JobFacts | None:
        if not self.answers:
            raise slurm.NoAnswer("no answer")
        return self.jobs.get(job)

    def jobs_with_comment(self, _: str) -> list[str]:
        if not self.answers:
            raise slurm.NoAnswer("no answer")
        return [job for job, facts in self.jobs.items() if facts.is_pending or facts.is_running]

    def set(self, job: str, state: str) -> None:
        self.jobs[job] = slurm.JobFacts(state, "", 0, None, None, None, is_preempted=False)

    def submit(self, run: RunDirectory, _: str, __: object, continues: list[str]) -> SlurmJob:
        job = str(100 + len(self.submitted))
        self.submitted.append(job)
        self.set(job, "PENDING")
        record(run, SlurmJob(job), continues)
        return SlurmJob(job)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(monkeypatch)


@pytest.fixture
def made(scene: Scene) -> Made:
    found = launch(scene)
    found[0].output.mkdir(parents=True)
    return found


def follow(made: Made, said: list[str] | None = None) -> dict[str, Any]:
    with driving(made, [] if said is None else said, "slurm") as driver:
        job = driver.ensure_allocation()
        assert job is not None
        return driver.wait(job, until_ready=False)


def test_a_job_that_nobody_knows_any_more_is_no_success(made: Made, queue: Queue) -> None:
    later(lambda: queue.submitted, queue.jobs.clear)
    with pytest.raises(JobFailed, match="Slurm does not know it any more"):
        follow(made)
    assert queue.submitted == ["100"]


@pytest.mark.parametrize("state", ["CANCELLED", "REVOKED"])
def test_a_cancelled_job_is_not_submitted_again(made: Made, queue: Queue, state: str) -> None:
    later(lambda: queue.submitted, lambda: queue.set("100", state))
    with pytest.raises(JobFailed, match=state):
        follow(made)
    assert queue.submitted == ["100"]


def test_a_job_that_keeps_dying_without_a_word_uses_up_the_budget(made: Made, queue: Queue) -> None:
    stop = threading.Event()

    def kill() -> None:
        while not stop.is_set():
            for job in queue.jobs_with_comment(""):
                queue.set(job, "NODE_FAIL")
            time.sleep(0.005)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    with pytest.raises(JobFailed, match="NODE_FAIL"):
        follow(made)
    stop.set()
    assert len(queue.submitted) == 3


def test_no_answer_is_waited_for(made: Made, queue: Queue) -> None:
    queue.answers = False
    said: list[str] = []

    def come_back() -> None:
        assert queue.submitted == []
        queue.answers = True

    later(lambda: any("does not answer" in text for text in said), come_back)
    later(lambda: queue.submitted, lambda: queue.set("100", "CANCELLED"))
    with pytest.raises(JobFailed):
        follow(made, said)
    assert queue.submitted == ["100"]


def test_an_unrecorded_job_is_found(made: Made, queue: Queue) -> None:
    """The driver died between submitting and recording."""
    queue.set("7", "RUNNING")
    later(made[0].jobs, lambda: queue.set("7", "CANCELLED"))
    with pytest.raises(JobFailed, match="job 7"):
        follow(made)
    assert queue.submitted == []


def test_a_recorded_number_that_is_another_job_now_is_not_attached_to(
    made: Made, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.set("7", "RUNNING")
    record(made[0], SlurmJob("7"), ())
    monkeypatch.setattr(slurm, "jobs_with_comment", lambda _: queue.submitted)
    later(lambda: queue.submitted, lambda: queue.set("100", "CANCELLED"))
    with pytest.raises(JobFailed, match="job 100"):
        follow(made)


def test_a_preempted_job_that_slurm_did_not_requeue_is_submitted_again(made: Made, queue: Queue) -> None:
    """PreemptMode=CANCEL."""

    def preempt() -> None:
        attempt = made[0].attempt(AttemptKey("100"))
        write_json(attempt.facts, {"resume_step": 0})
        attempt.finish("preempted", "the job makes room")
        queue.set("100", "PREEMPTED")

    later(lambda: queue.submitted, preempt)
    later(lambda: len(queue.submitted) == 2, lambda: queue.set("101", "CANCELLED"))
    with pytest.raises(JobFailed, match="job 101"):
        follow(made)
    assert made[0].jobs() == ["100", "101"]


@pytest.mark.parametrize("status", ["stopped", "preempted", "failed"])
def test_a_requeued_job_that_is_cancelled_stays_cancelled(made: Made, queue: Queue, status: Status) -> None:
    """It waits for its next attempt; what its last one says is not what ended it."""

    def cancel() -> None:
        attempt = made[0].attempt(AttemptKey("100"))
        write_json(attempt.facts, {"resume_step": 0})
        attempt.finish(status, "of this attempt", accident=True)
        queue.set("100", "CANCELLED")

    later(lambda: queue.submitted, cancel)
    with pytest.raises(JobFailed, match="job 100 was cancelled"):
        follow(made)
    assert queue.submitted == ["100"]


def test_a_recorded_job_is_known_by_its_name_where_the_site_writes_other_comments(
    made: Made, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train_grpo` would submit a second job beside that of `rollout_server`."""
    facts = slurm.JobFacts("RUNNING", "", 0, None, None, None, is_preempted=False, name="grpoflow-main")
    queue.jobs["7"] = facts
    record(made[0], SlurmJob("7"), ())
    monkeypatch.setattr(slurm, "jobs_with_comment", lambda _: queue.submitted)
    with driving(made, [], "slurm") as driver:
        assert driver.ensure_allocation() == SlurmJob("7")
    assert queue.submitted == []


def test_another_profile_attaches_to_the_job_that_there_is(
    made: Made, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainings would write into one directory."""
    monkeypatch.setattr(slurm, "is_here", lambda: True)
    queue.set("7", "RUNNING")
    record(made[0], SlurmJob("7"), ())
    with driving(made, [], "local") as driver:
        assert driver.ensure_allocation() == SlurmJob("7")
    here = LocalJob(str(os.getpid()), process_start(os.getpid()))
    record(made[0], here, ())
    queue.jobs.clear()
    with driving(made, [], "slurm") as driver:
        assert driver.ensure_allocation() == here


def test_a_local_run_does_not_wait_for_a_slurm_that_is_gone(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many a workstation has the clients of a cluster that it cannot reach."""

    def no_answer(_: str) -> list[str]:
        raise slurm.NoAnswer("Unable to contact slurm controller")

    monkeypatch.setattr(slurm, "is_here", lambda: True)
    monkeypatch.setattr(slurm, "jobs_with_comment", no_answer)
    monkeypatch.setattr(driver_module, "submit", lambda *_: LocalJob("7", "now"))
    said: list[str] = []
    with driving(made, said, "local") as driver:
        assert driver.ensure_allocation() == LocalJob("7", "now")
    assert [text for text in said if "Unable to contact slurm controller" in text] == said[:1]


def test_what_was_refused_is_not_taken_for_a_complete_training(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor that refused it was killed before it could move the checkpoint aside."""
    run, last = made[0], made[1].config.trainer.train_steps
    checkpoint = run.output / f"checkpoint-{last}"
    checkpoint.mkdir(parents=True)
    save_file({"weight": np.zeros(3, "f4")}, checkpoint / "model.safetensors")
    write_json(checkpoint / "trainer_state.json", {"global_step": last})
    (run.output / "last-checkpoint").symlink_to(checkpoint.name)
    record = {"loss": 0.1, "grad_norm": 1.0, "reward": 1.0, "iteration": f"{last}/{last}"}
    run.log.write_text(json.dumps(record) + "\n")
    monkeypatch.setattr(driver_module, "submit", lambda *_: LocalJob("7", "now"))
    with driving(made, []) as driver:
        assert driver.ensure_allocation() is None
        refuse(run, 4)
        assert driver.ensure_allocation() == LocalJob("7", "now")
    assert not checkpoint.exists()
    assert len(list(run.output.glob(f"incomplete-checkpoint-{last}-*"))) == 1
    assert not run.refused.exists()


def test_servers_of_the_attempt_before_are_not_ready(made: Made, queue: Queue) -> None:
    """A requeued job runs again and has not opened its next attempt."""
    queue.set("7", "RUNNING")
    record(made[0], SlurmJob("7"), ())
    servers = [{"host": "old", "port": 1}]
    old = {"job_id": "7", "attempt": "7.0.0", "state": "stopped", "verdict": "requeue", "servers": servers}
    write_json(made[0].allocation, old)
    now = {"job_id": "7", "attempt": "7.1.0", "state": "training", "servers": [{"host": "new", "port": 1}]}
    said: list[str] = []
    later(lambda: any("stopped" in text for text in said), lambda: write_json(made[0].allocation, now))
    with driving(made, said, "slurm") as driver:
        job = driver.ensure_allocation()
        assert job is not None
        assert driver.wait(job, until_ready=True)["servers"][0]["host"] == "new"


def test_a_job_that_is_somebody_elses_now_is_not_cancelled(
    made: Made, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(job_module.SlurmJob, "cancel", lambda self: cancelled.append(self.id))
    monkeypatch.setattr(slurm, "jobs_with_comment", lambda _: [])
    queue.set("7", "RUNNING")
    record(made[0], SlurmJob("7"), ())
    cancel_job(made[0], DriverLock(made[0].lock), lambda _: None)
    assert cancelled == []


def test_a_process_number_that_comes_again_has_attempts_of_its_own(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would start its programs and end them for what the attempt of the last boot says."""
    run = made[0]
    made[1].write(run.launch)
    run.attempt(AttemptKey("100")).finish("failed", "of another boot")
    worked: list[str] = []

    class Recorded:
        def __init__(self, _: object, __: object, task: Task, *___: object) -> None:
            worked.append(str(task.key))

        def work(self) -> str:
            return "complete"

        def part(self) -> None: ...

    monkeypatch.setenv("SUBMITIT_LOCAL_JOB_ID", "100")
    monkeypatch.setattr(node_module, "Node", Recorded)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    node_module.run_node(str(run.path))
    assert worked == ["100.0.1"]


def test_a_driver_without_its_snakemake_ends_and_leaves_the_job(made: Made, queue: Queue) -> None:
    with driving(made, [], "slurm") as driver:
        job = driver.ensure_allocation()
        assert job is not None
        driver.leader = Leader(os.getpid(), "another start")
        with pytest.raises(DriverOrphaned):
            driver.wait(job, until_ready=False)
    assert queue.jobs["100"].is_pending
    assert not made[0].lock.exists()


def test_a_second_driver_watches_and_does_not_cancel(
    made: Made, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(job_module.SlurmJob, "cancel", lambda self: cancelled.append(self.id))
    said: list[str] = []
    with driving(made, [], "slurm") as first:
        assert first.ensure_allocation() is not None
        with pytest.raises(KeyboardInterrupt), driving(made, said, "slurm") as second:
            assert second.ensure_allocation() == SlurmJob("100")
            raise KeyboardInterrupt
    assert queue.submitted == ["100"]
    assert cancelled == []
    assert said[-1].startswith("job 100 goes on: process")
