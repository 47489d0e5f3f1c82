"""Which run the stages of the RL job find, and whether both find the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpoflow.files import write_json
from grpoflow.stages.base import Stage, StageFailed
from grpoflow.stages.rl import _check_servers, _run
from scene import Scene


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.chdir(tmp_path)
    plugin = tmp_path / "plugin.py"
    plugin.write_text("reward = 1.0\n")
    scene = Scene(tmp_path)
    config = scene.config({"rewards": {"plugin": str(plugin)}})
    frozen = {"sha256": {"train.jsonl": "0"}, "template": {"response_prefix": ""}}
    write_json(tmp_path / "dataset.json", frozen)
    inputs = {"dataset": "dataset.json", "start": str(scene.model / "config.json")}
    return Stage("train_grpo", "main", config, inputs, tmp_path / "train.json", tmp_path / "logs", {})


def test_an_edited_reward_is_another_run(stage: Stage) -> None:
    """The file has the same name: a policy of the old reward would be taken for one of the new."""
    first, again = (_run(stage)[0].path for _ in range(2))
    assert first == again
    plugin = Path(str(stage.config.rewards.plugin))
    plugin.write_text("reward = 0.5\n")
    edited = _run(stage)[0].path
    assert edited != first
    plugin.write_text("reward = 1.0\n")
    assert _run(stage)[0].path == first


def test_a_reward_that_is_edited_while_the_servers_start_submits_no_second_job(stage: Stage) -> None:
    run = _run(stage)[0]
    _check_servers(stage, run)  # colocate: there are none
    write_json(Path("endpoints.json"), {"run": run.path.name, "job_id": "7"})
    serving = Stage(
        *("train_grpo", "main", stage.config, {**stage.input, "endpoints": "endpoints.json"}),
        *(stage.output, stage.logs, {}),
    )
    _check_servers(serving, run)
    Path(str(stage.config.rewards.plugin)).write_text("reward = 0.5\n")
    with pytest.raises(StageFailed, match=rf"job 7 serves run {run.path.name}.*grpoflow cancel"):
        _check_servers(serving, _run(serving)[0])
