"""Reading logging.jsonl as both backends write it."""

import json
from pathlib import Path

from grpoflow.metrics import progress, read_steps


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_resumed_run_counts_each_step_once(tmp_path: Path) -> None:
    log = write(
        tmp_path / "logging.jsonl",
        {"loss": 1.0, "iteration": "1/3"},
        {"loss": 2.0, "iteration": "2/3"},
        {"loss": 2.5, "iteration": "2/3"},
        {"loss": 3.0, "iteration": "3/3"},
    )
    assert [(step["step"], step["loss"]) for step in read_steps(log)] == [(1, 1.0), (2, 2.5), (3, 3.0)]


def test_evaluation_summary_and_a_torn_line_are_left_out(tmp_path: Path) -> None:
    log = write(
        tmp_path / "logging.jsonl",
        {"loss": 1.0, "global_step/max_steps": "5/10", "reward": 0.25},
        {"eval_reward": 0.5, "global_step/max_steps": "5/10"},
        {"last_model_checkpoint": "x", "best_metric": None},
    )
    log.write_text(log.read_text() + '{"loss": 0.5, "global_st')
    (step,) = read_steps(log)
    assert (step["step"], step["max_steps"]) == (5, 10)
    assert progress(log) == "step 5/10  loss 1  reward 0.25"


def test_the_step_after_a_torn_line_counts(tmp_path: Path) -> None:
    """A killed trainer had begun a line, and that of the next attempt is appended to it."""
    log = write(tmp_path / "logging.jsonl", {"loss": 1.0, "iteration": "1/3"})
    log.write_text(log.read_text() + '{"loss": 2.0, "mean": {"a": 1, "it{"loss": 2.5, "iteration": "2/3"}\n')
    assert [(step["step"], step["loss"]) for step in read_steps(log)] == [(1, 1.0), (2, 2.5)]


def test_no_log_is_no_step(tmp_path: Path) -> None:
    assert read_steps(tmp_path / "logging.jsonl") == []
    assert progress(tmp_path / "logging.jsonl") == ""
