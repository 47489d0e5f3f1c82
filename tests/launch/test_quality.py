"""The gate of the first rollout and the alarms after it, on files as ms-swift writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grpoflow.files import read_json
from grpoflow.launch.quality import Quality, accepted_checkpoint, judge_what_was_left, refusal
from grpoflow.launch.run import Launch, RunDirectory
from scene import Scene, launch

SOUND = ["<answer>1</answer>", "<answer>2</answer>"] * 8


class Produced:
    """What a trainer writes."""

    def __init__(self, run: RunDirectory):
        self.run = run
        run.output.mkdir(parents=True)

    def step(self, step: int, **values: Any) -> None:
        record = {
            "loss": 0.1,
            "reward": 0.5,
            "grad_norm": 0.3,
            "rewards/TextReward/mean": 0.5,
            "completions/mean_length": 9.0,
            "completions/min_length": 5.0,
            "iteration": f"{step}/100",
        }
        self._append(self.run.log, record | values)

    def rollout(self, texts: list[str] = SOUND, rewards: list[float] | None = None) -> None:
        table = {
            "prompt": ["a", "a", "b", "b"] * (len(texts) // 4),
            "completion": texts,
            "TextReward": rewards or [0.0, 1.0] * (len(texts) // 2),
        }
        self._append(self.run.completions, table)

    @staticmethod
    def _append(path: Path, record: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")


@pytest.fixture
def found(tmp_path: Path) -> tuple[Produced, Launch]:
    run, found = launch(Scene(tmp_path))
    return Produced(run), found


Found = tuple[Produced, Launch]


def test_a_sound_rollout_makes_checkpoints_count(found: Found) -> None:
    produced, settings = found
    quality = Quality(produced.run, settings, "1.0.0", 0)
    assert quality.look() == []
    produced.rollout()
    produced.step(1)
    assert accepted_checkpoint(produced.run) is None
    assert not produced.run.first_rollout.exists()
    assert quality.look() == []
    assert read_json(produced.run.first_rollout) == {"attempt": "1.0.0", "step": 1}
    assert not produced.run.alarms.exists()
    assert quality.sound_step == 1


@pytest.mark.parametrize(
    ("texts", "rewards", "values", "gate"),
    [
        (["!" * 40] * 16, None, {}, "one symbol"),
        ([""] * 16, None, {}, "empty completions"),
        (SOUND, [0.25] * 16, {}, "reward"),
        (SOUND, [float("inf")] * 16, {}, "reward"),
        (SOUND, None, {"rollout_correction/k3_kl": 0.9}, "agreement"),
        (SOUND, None, {"completions/min_length": 32.0}, "length"),
        (SOUND, None, {"completions/mean_length": 0.0}, "length"),
    ],
)
def test_garbage_ends_the_attempt(
    found: Found, texts: list[str], rewards: list[float] | None, values: dict[str, Any], gate: str
) -> None:
    produced, settings = found
    quality = Quality(produced.run, settings, "1.0.0", 0)
    produced.rollout(texts, rewards)
    produced.step(1, **values)
    stops = quality.look()
    assert [finding.gate for finding in stops] == [gate]
    assert not produced.run.first_rollout.exists()
    assert quality.sound_step == 0
    text = refusal(stops)
    assert "Known causes: " in text
    assert "trainer.quality_gate: warn" in text
    (alarm,) = read_json(produced.run.alarms)
    assert (alarm["gate"], alarm["level"]) == (gate, "stop")


def test_garbage_may_be_allowed(tmp_path: Path) -> None:
    run, settings = launch(Scene(tmp_path), {"trainer": {"quality_gate": "warn"}})
    produced = Produced(run)
    quality = Quality(run, settings, "1.0.0", 0)
    produced.rollout(["!" * 40] * 16)
    produced.step(1)
    assert quality.look() == []
    (alarm,) = read_json(run.alarms)
    assert (alarm["gate"], alarm["level"]) == ("one symbol", "alarm")
    assert run.first_rollout.is_file()


def test_a_resumed_run_is_stopped_for_the_sync_only(found: Found) -> None:
    """All rewards may be equal because everything is solved by now."""
    produced, settings = found
    for step in range(1, 11):
        produced.step(step)
    produced.rollout()
    quality = Quality(produced.run, settings, "1.1.0", 8)  # steps 9 and 10 are done again
    assert [step["step"] for step in quality.steps] == list(range(1, 9))
    produced.rollout(rewards=[1.0] * 16)
    produced.step(9)
    assert quality.look() == []
    assert read_json(produced.run.alarms)[0]["gate"] == "reward"

    garbage = Quality(produced.run, settings, "1.2.0", 8)
    produced.rollout(["!" * 40] * 16)
    produced.step(9)
    assert [finding.gate for finding in garbage.look()] == ["one symbol"]
    assert garbage.sound_step == 8


def test_completions_may_come_after_the_log(found: Found) -> None:
    """swift rlhf writes them after the line of the log; without any, the numbers alone are judged."""
    produced, settings = found
    quality = Quality(produced.run, settings, "1.0.0", 0)
    produced.step(1)
    assert quality.look() == []
    assert not quality.judged
    produced.rollout(["!" * 40] * 16)
    assert len(quality.look()) == 1

    other = Quality(produced.run, settings, "1.0.1", 0)
    produced.step(1)
    assert other.look(last=True) == []
    assert other.judged


def test_alarms_last_as_long_as_they_hold(found: Found) -> None:
    produced, settings = found
    quality = Quality(produced.run, settings, "1.0.0", 0)
    produced.rollout()
    produced.step(1)
    quality.look()
    for step in range(2, 30):
        produced.step(step, kl=20.0 if 5 <= step <= 9 else 0.0, reward=0.8 if step < 12 else 0.1)
        assert quality.look() == []
    kl, reward = read_json(produced.run.alarms)
    assert (kl["gate"], kl["step"], kl["last_step"]) == ("KL", 5, 18)  # the mean of ten steps is above 1
    assert (reward["gate"], reward["last_step"]) == ("reward collapse", 29)
    assert reward["numbers"]["best"] > 0.7
    assert all(alarm["causes"] for alarm in (kl, reward))


def test_a_loss_that_is_not_finite_ends_the_attempt(found: Found) -> None:
    produced, settings = found
    quality = Quality(produced.run, settings, "1.0.0", 0)
    produced.rollout()
    for step in range(1, 7):
        produced.step(step)
    assert quality.look() == []
    produced.step(7)
    assert quality.look() == []
    produced.step(8, loss=float("nan"))
    assert [finding.gate for finding in quality.look()] == ["finite"]
    assert quality.sound_step == 7


@pytest.mark.parametrize(("texts", "sound"), [(SOUND, True), (["!" * 40] * 16, False)])
def test_what_a_killed_supervisor_did_not_judge(found: Found, texts: list[str], sound: bool) -> None:
    produced, settings = found
    judge_what_was_left(produced.run, settings, "1.0.1")
    assert not produced.run.first_rollout.exists()
    produced.rollout(texts)
    for step in range(1, 7):
        produced.step(step)
    judge_what_was_left(produced.run, settings, "1.0.1")
    assert produced.run.first_rollout.is_file() == sound


def test_a_line_that_cannot_be_read_ends_no_run(found: Found) -> None:
    produced, settings = found
    quality = Quality(produced.run, settings, "1.0.0", 0)
    with produced.run.completions.open("ab") as file:
        file.write(b'{"prompt": ["\xff\n')
    produced.step(1)
    assert quality.look() == []
    assert quality.judged
