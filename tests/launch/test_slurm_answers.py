"""Reading what Slurm's programs print. The texts are those of Slurm 22.05."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest
from grpoflow.launch import slurm
from grpoflow.launch.deadline import end_of_signalled_job
from grpoflow.launch.run import AttemptKey

JOB = (
    "JobId=7 JobName=grpoflow-main UserId=u(1) GroupId=g(1) MCS_label=N/A Priority=1 Nice=0 Account=train "
    "QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1 "
    "Reboot=0 ExitCode=0:0 RunTime=00:01:00 TimeLimit={limit} TimeMin=N/A SubmitTime=2026-11-30T16:29:16 "
    "StartTime={start} EndTime={end} Deadline=N/A PreemptEligibleTime=2026-11-30T16:29:16 "
    "PreemptTime={preempt} Partition=gpu NodeList=a800-[0-1] Comment=train_grpo main 01-02 Power="
)
RUNNING = {
    "state": "RUNNING",
    "reason": "None",
    "restarts": 0,
    "limit": "1-02:03:04",
    "start": "2026-11-30T16:29:16",
    "end": "2026-12-01T18:32:20",
    "preempt": "None",
}


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that print the files of their name in the directory returned, and fail with NAME.err."""
    for name in ("scontrol", "squeue", "scancel", "sinfo", "sbatch"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!/bin/sh\nif [ -e {tmp_path}/{name}.err ]; then cat {tmp_path}/{name}.err >&2; exit 1; fi\n"
            f"cat {tmp_path}/{name}\n"
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


def scontrol(answers: Path, **changes: object) -> None:
    (answers / "scontrol").write_text(JOB.format(**(RUNNING | changes)) + "\n")


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_running_job(answers: Path) -> None:
    scontrol(answers)
    facts = slurm.job_facts("7")
    assert facts is not None
    assert facts.is_running
    assert not facts.is_pending
    assert facts.limit == 26 * 3600 + 3 * 60 + 4
    assert facts.end == seconds("2026-12-01T18:32:20")
    assert not facts.is_preempted


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "UNHEARD_OF"])
def test_other_states_are_neither(answers: Path, state: str) -> None:
    scontrol(answers, state=state)
    facts = slurm.job_facts("7")
    assert facts is not None
    assert not facts.is_running
    assert not facts.is_pending


def test_no_limit_and_no_end(answers: Path) -> None:
    scontrol(answers, state="PENDING", limit="UNLIMITED", start="Unknown", end="Unknown")
    facts = slurm.job_facts("7")
    assert facts is not None
    assert (facts.limit, facts.started, facts.end) == (None, None, None)


def test_a_job_that_slurm_does_not_know(answers: Path) -> None:
    (answers / "scontrol.err").write_text("slurm_load_jobs error: Invalid job id specified\n")
    assert slurm.job_facts("7") is None


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
        "slurm_load_jobs error: Socket timed out on send/recv operation\n",
    ],
)
def test_no_answer_is_not_an_end(answers: Path, text: str) -> None:
    (answers / "scontrol.err").write_text(text)
    with pytest.raises(slurm.NoAnswer):
        slurm.job_facts("7")


def test_a_program_that_is_not_there_is_no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(slurm.NoAnswer):
        slurm.jobs_with_comment("train_grpo main 01-02")


def test_jobs_are_found_by_their_whole_comment(answers: Path) -> None:
    rows = ["12|train_grpo main 01-02", "9|train_grpo main 01-02", "13|train_grpo main 01-03", "14|(null)"]
    (answers / "squeue").write_text("\n".join(rows) + "\n")
    assert slurm.jobs_with_comment("train_grpo main 01-02") == ["9", "12"]


def test_nodes_that_failed(answers: Path) -> None:
    (answers / "sinfo").write_text("a800-0 allocated\na800-1 down*\na800-2 idle\na800-1 down*\n")
    assert slurm.failed_nodes("a800-[0-2]") == ["a800-1"]


@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({"restarts": 1, "state": "COMPLETING"}, "preempted", "preemption"),
        ({"preempt": "2026-11-30T16:29:20"}, "preempted", "higher priority"),
        ({"preempt": "2026-11-30T16:29:20", "state": "COMPLETING"}, "preempted", "preemption"),
        ({"state": "COMPLETING", "limit": "00:01:00"}, "stopped", "wall-time was over"),
        ({"state": "COMPLETING", "reason": "TimeLimit"}, "stopped", "wall-time was over"),
        ({"state": "COMPLETING", "limit": "9999-00:00:00"}, "cancelled", "was cancelled"),
    ],
)
def test_why_a_job_was_signalled(answers: Path, changes: dict[str, object], status: str, why: str) -> None:
    (answers / "sinfo").write_text("")
    scontrol(answers, **({"end": "2999-01-01T00:00:00"} | changes))
    found = end_of_signalled_job(AttemptKey("7"), None)
    assert (found.status, why in found.why) == (status, True)
    assert (found.grace is not None) == ("preempt" in changes and "state" not in changes)


def test_a_job_at_its_end_was_not_cancelled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The controller may be busy just then; what it said before still holds."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert end_of_signalled_job(AttemptKey("7"), time.time() + 1).status == "stopped"
    assert end_of_signalled_job(AttemptKey("7"), time.time() + 600).status == "cancelled"


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("allocation failure: Requested node configuration is not available", "refused"),
        ("allocation failure: Invalid account or account/partition combination specified", "refused"),
        ("allocation failure: Required Node not available (down, drained or reserved)", "waits"),
        ("allocation failure: Requested nodes are busy", "waits"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "no answer"),
    ],
)
def test_a_rehearsal(answers: Path, said: str, meaning: str) -> None:
    (answers / "sbatch.err").write_text(f"{said}\n")
    if meaning == "waits":
        assert slurm.rehearse("#!/bin/sh").startswith(f"it would have to wait: {said}")
        return
    with pytest.raises(slurm.Refused if meaning == "refused" else slurm.NoAnswer, match=r"fail|contact"):
        slurm.rehearse("#!/bin/sh")
