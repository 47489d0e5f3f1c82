"""A result appears by one rename, complete; two attempts at once do not disturb each other."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from grpoflow.commands.base import Command
from grpoflow.commands.distributed import Ranks, torchrun_environment
from grpoflow.config import load_experiments, read_yaml
from grpoflow.files import read_json
from grpoflow.stages.attempt import attempt_directory
from grpoflow.stages.base import Stage, StageFailed, finish
from grpoflow.stages.preflight import preflight

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    output = tmp_path / "results/shared/sft/abc/manifest.json"
    output.parent.mkdir(parents=True)  # Snakemake makes it
    config = load_experiments(read_yaml(ROOT / "config/config.yaml"))["main"]
    return Stage("sft", "abc", config, {}, output, tmp_path / "logs", {})


def names(stage: Stage) -> list[str]:
    return sorted(path.name for path in stage.output.parent.parent.iterdir())


def test_nothing_is_seen_before_the_end(stage: Stage) -> None:
    with attempt_directory(stage) as work:
        (work / "model").write_text("weights")
        assert list(stage.output.parent.iterdir()) == []
        finish(stage, work, answer=42)
    assert read_json(stage.output)["answer"] == 42
    assert (stage.output.parent / "model").read_text() == "weights"
    assert names(stage) == ["abc"]


def test_a_failed_attempt_leaves_nothing(stage: Stage) -> None:
    with pytest.raises(RuntimeError), attempt_directory(stage) as work:
        (work / "model").write_text("half")
        raise RuntimeError
    assert names(stage) == ["abc"]
    assert list(stage.output.parent.iterdir()) == []


TERMINATED = """
import sys
from pathlib import Path
from types import SimpleNamespace as Job
from grpoflow.commands.base import Command
from grpoflow.config import read_yaml
from grpoflow.stages import main
from grpoflow.stages.attempt import attempt_directory

def stage(stage):
    with attempt_directory(stage) as work:
        (work / "model").write_text("half")
        print(work, flush=True)
        stage.run("convert", Command(("sleep", "600"), {}))

main.STAGES["sft"] = stage
output = sys.argv[2]
main.run(Job(rule="sft", wildcards={"sft": "abc"}, log=[], config=read_yaml(Path(sys.argv[1])), input={},
             output=[output], resources={}))
"""


def test_a_stage_that_is_told_to_end_leaves_nothing(stage: Stage, tmp_path: Path) -> None:
    """scancel and the wall-time send SIGTERM half a minute before SIGKILL; a model has hundreds of GB."""
    argv = [sys.executable, "-c", TERMINATED, str(ROOT / "config/config.yaml"), str(stage.output)]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        work = Path(job.stdout.readline().strip())
        assert (work / "model").is_file()
        while "log" not in job.stdout.readline():  # the program is started after it is named
            pass
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=40) == 128 + signal.SIGTERM
    assert names(stage) == ["abc"]


def test_what_killed_attempts_left_is_removed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing that somebody may still be writing: a living process, one of another machine, a job that
    has not ended or of which Slurm says nothing, a stage whose name begins alike."""
    states = {"7": "gone", "8": "running", "9": "unknown"}
    monkeypatch.setattr("grpoflow.launch.job.SlurmJob.state", lambda job: states[job.id])
    monkeypatch.setenv("SLURM_JOB_ID", "6")
    here, ended = socket.gethostname(), 2**22 + 1  # above the largest process number
    kept = [f".abc.{os.getpid()}@{here}-1", f".abc.{ended}@elsewhere-1", ".abc.8-1", ".abc.9-1", ".abc.d.7-1"]
    for name in [*kept, f".abc.{ended}@{here}-1", ".abc.7-1", ".abc.6-1"]:
        (stage.output.parent.with_name(name) / "model").mkdir(parents=True)
    with attempt_directory(stage) as work:
        assert names(stage) == sorted([*kept, "abc", work.name])
        finish(stage, work)
    assert names(stage) == sorted([*kept, "abc"])


def test_a_stage_without_manifest_is_a_failure(stage: Stage) -> None:
    with pytest.raises(StageFailed, match="without writing manifest"), attempt_directory(stage):
        pass


def test_the_first_of_two_attempts_wins(stage: Stage) -> None:
    with attempt_directory(stage) as first, attempt_directory(stage) as second:
        finish(stage, second, who="inner")
        finish(stage, first, who="outer")
    assert read_json(stage.output)["who"] == "inner"
    assert names(stage) == ["abc"]


def test_a_removed_manifest_is_made_again_with_its_result(stage: Stage) -> None:
    for number in (1, 2):
        with attempt_directory(stage) as work:
            (work / f"model-{number}").write_text("weights")
            finish(stage, work, number=number)
        if number == 1:
            stage.output.unlink()
    assert read_json(stage.output)["number"] == 2
    assert sorted(path.name for path in stage.output.parent.iterdir()) == ["manifest.json", "model-2"]
    assert names(stage) == ["abc"]


@pytest.mark.parametrize("resources", [{}, {"launcher": "", "slurm_account": "x"}, {"launcher": "pbs"}])
def test_without_a_launcher_the_first_stage_says_what_was_dropped(
    stage: Stage, resources: dict[str, str]
) -> None:
    """`--default-resources slurm_account=x` replaces those of the profile, launcher included."""
    stage = replace(stage, name="preflight", resources={"runtime": 60, **resources})
    with pytest.raises(StageFailed, match=r"--default-resources .* replaces .* --set-resources"):
        preflight(stage)
    assert list(stage.output.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("visible", "enough"), [("0,1", True), (None, True), ("0", False), ("NoDevFiles", False)]
)
def test_a_job_with_too_few_gpus_is_refused(
    stage: Stage, visible: str | None, enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cluster = stage.config.cluster.model_copy(update={"device": "cuda", "gpus_per_node": 2})
    stage = replace(stage, name="evaluate", config=stage.config.model_copy(update={"cluster": cluster}))
    command = Command(("true",), torchrun_environment(Ranks(2)))
    if enough:
        stage.run("infer", command)
    else:
        with pytest.raises(StageFailed, match=r"2 ranks.*set-resources evaluate:gres=gpu:2"):
            stage.run("infer", command)
