"""What follows the end of an attempt, and the budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grpoflow.files import write_json
from grpoflow.launch import quality
from grpoflow.launch.run import AttemptKey, Launch, RunDirectory
from grpoflow.launch.verdict import fruitless_attempts, judge
from scene import Scene, launch

FAILED = {"status": "failed", "cause": "why", "lasting": False, "accident": False}


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunDirectory, Launch]:
    found = launch(Scene(tmp_path))
    found[0].output.mkdir(parents=True)
    return found


def trained(run: RunDirectory, steps: int) -> None:
    lines = [{"loss": 0.0, "iteration": f"{step}/12"} for step in range(1, steps + 1)]
    run.log.write_text("".join(json.dumps(line) + "\n" for line in lines))


def saved(monkeypatch: pytest.MonkeyPatch, run: RunDirectory, step: int) -> None:
    newest = type("Newest", (), {"step": step, "path": run.output})
    monkeypatch.setattr(quality, "newest_checkpoint", lambda _: newest if step else None)
    write_json(run.first_rollout, {})


def attempts(run: RunDirectory, *resumed_and_ended: tuple[int, str], job: str = "1") -> None:
    for again, (step, status) in enumerate(resumed_and_ended):
        attempt = run.attempt(AttemptKey(job, 0, again))
        write_json(attempt.facts, {"resume_step": step})
        if status:
            attempt.finish(status, "why")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "action"),
    [
        ({"status": "complete"}, "end"),
        ({"status": "cancelled"}, "end"),
        ({"status": "preempted"}, "requeue"),
        ({"status": "stopped"}, "requeue"),
        ({}, "again"),
        ({"lasting": True}, "end"),
    ],
)
def test_what_follows(run: tuple[RunDirectory, Launch], end: dict[str, Any], action: str) -> None:
    trained(run[0], 3)
    assert judge(*run, ["1"], FAILED | end).action == action


def test_before_the_first_step_only_an_accident_is_tried_again(run: tuple[RunDirectory, Launch]) -> None:
    refused = judge(*run, ["1"], FAILED)
    assert refused.action == "end"
    assert "nothing was trained yet" in refused.why
    assert judge(*run, ["1"], FAILED | {"accident": True}).action == "again"


def test_attempts_without_a_new_checkpoint_use_up_the_budget(
    run: tuple[RunDirectory, Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(run[0], 6)
    saved(monkeypatch, run[0], 4)
    attempts(run[0], (0, "failed"), (4, "failed"), (4, "failed"))
    assert fruitless_attempts(run[0], ["1"]) == 2
    assert judge(*run, ["1"], FAILED).action == "again"
    attempts(run[0], (0, "failed"), (4, "failed"), (4, "failed"), (4, "failed"))
    assert judge(*run, ["1"], FAILED).why.startswith("not tried again: 3 attempts in a row")


def test_a_new_checkpoint_starts_the_count_anew(
    run: tuple[RunDirectory, Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(run[0], 9)
    saved(monkeypatch, run[0], 8)
    attempts(run[0], *[(4, "failed")] * 9, (8, "failed"))
    assert fruitless_attempts(run[0], ["1"]) == 1


@pytest.mark.parametrize("status", ["preempted", "cancelled", ""])
def test_what_slurm_or_a_person_ended_counts_for_nothing(
    run: tuple[RunDirectory, Launch], status: str
) -> None:
    attempts(run[0], (0, "failed"), (0, status), (0, status))
    assert fruitless_attempts(run[0], ["1"]) == 1


def test_attempts_of_continued_jobs_count_and_those_of_former_ones_do_not(
    run: tuple[RunDirectory, Launch],
) -> None:
    for job in ("9", "10", "8"):
        attempts(run[0], (0, "failed"), job=job)
    (run[0].path / "attempts/9.0.0.tar.gz").touch()  # a person's
    assert fruitless_attempts(run[0], ["9", "10"]) == 2
    assert [attempt.path.name for attempt in run[0].attempts(["9", "10"])] == ["9.0.0", "10.0.0"]


def test_a_checkpoint_of_an_unjudged_rollout_is_no_progress(
    run: tuple[RunDirectory, Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not resumed from, so attempts that make one again and again would never end."""
    saved(monkeypatch, run[0], 4)
    run[0].first_rollout.unlink()
    attempts(run[0], (0, "failed"), (0, "failed"), (0, "failed"))
    assert fruitless_attempts(run[0], ["1"]) == 3
