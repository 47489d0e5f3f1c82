"""The script that is handed to sbatch, against golden files; GRPOFLOW_UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from grpoflow.cli import main
from grpoflow.launch.job import SubmissionFailed, extra_options, sbatch_script
from grpoflow.launch.run import RunDirectory
from grpoflow.plan.inputs import placement_of
from grpoflow.stages.allocation import ProfileError, profile_resources
from scene import ROOT, Scene, launch

GOLDEN = ROOT / "tests/golden/sbatch"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one-node": ({}, {"mem_mb": 16000, "runtime": 1440}),
    "four-nodes": (
        {
            "cluster": {"device": "cuda", "gpus_per_node": 8},
            "rollout": {"nodes": 1, "gpus": None},
            "trainer": {"nodes": 3, "parallel": {"tensor": 1}, "global_batch_size": 192},
        },
        {
            "slurm_partition": "a800",
            "slurm_account": "train",
            "qos": "long",
            "constraint": "ib",
            "gres": "gpu:a800:8",
            "cpus_per_task": 64,
            "mem_mb": 900000,
            "runtime": 2880,
            "slurm_extra": "--exclusive --reservation=rl --nice=10",
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_script(tmp_path: Path, name: str) -> None:
    overlay, resources = CASES[name]
    scene = Scene(tmp_path)
    run, _ = launch(scene)
    nodes = len(placement_of(scene.config(overlay)).nodes)
    script = sbatch_script("main", nodes, run, resources)
    comment = next(line for line in script.splitlines() if "--comment" in line)
    script = script.replace(comment.rpartition("-")[2], "DIRECTORY'")
    script = script.replace(str(tmp_path), "/project").replace(sys.executable, "/env/bin/python")
    golden = GOLDEN / f"{name}.sh"
    if "GRPOFLOW_UPDATE_GOLDEN" in os.environ:
        golden.write_text(script)
    assert script == golden.read_text()


def test_extra_options_that_cannot_be_read(tmp_path: Path) -> None:
    run, _ = launch(Scene(tmp_path))
    with pytest.raises(SubmissionFailed, match="'-N2' is not of the form"):
        sbatch_script("main", 1, run, {"slurm_extra": "-N2"})


@pytest.mark.parametrize("option", ["--comment=projectX", "--job-name=mine", "--no-requeue", "--nodes=4"])
def test_what_the_launcher_says_itself_is_refused(option: str) -> None:
    """With another comment `train_grpo` would not find the job of `rollout_server`, and submit a second."""
    with pytest.raises(SubmissionFailed, match=f"slurm_extra: '{option}' is not for you to give"):
        extra_options(f"--exclusive {option}")


def test_resources_of_the_plugin_without_a_meaning_here_are_refused(tmp_path: Path) -> None:
    run, _ = launch(Scene(tmp_path))
    with pytest.raises(
        SubmissionFailed, match=r"resource gpu = 8 \(give gres=gpu:N.*resource nodes = 2 \(trainer"
    ):
        sbatch_script("main", 1, run, {"gpu": 8, "nodes": 2, "gres": "gpu:8"})


def test_no_cpus_are_asked_for_where_the_site_forbids_it(tmp_path: Path) -> None:
    run, _ = launch(Scene(tmp_path))
    assert "cpus-per-task" not in sbatch_script("main", 1, run, {"cpus_per_task": -1})


def test_memory_per_cpu(tmp_path: Path) -> None:
    run, _ = launch(Scene(tmp_path))
    script = sbatch_script("main", 1, run, {"mem_mb_per_cpu": 2000, "mem_mb": 16000})
    assert "#SBATCH --mem-per-cpu=2000M" in script
    assert "#SBATCH --mem=" not in script


PROFILE = """
executor: slurm
default-resources:
  launcher: slurm
  slurm_partition: gpu
  mem_mb: 4000
set-resources:
  rollout_server:
    gres: "'gpu:a800:8'"
  train_grpo:
    runtime: 2880
  sft:
    runtime: 60
"""
LISTS = """
default-resources: [launcher=slurm, slurm_partition=gpu, mem_mb=4000]
set-resources: ["rollout_server:gres='gpu:a800:8'", "train_grpo:runtime=2880", "sft:runtime=60"]
"""


@pytest.mark.parametrize("text", [PROFILE, LISTS])
def test_resources_of_a_profile(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert profile_resources(tmp_path, Scene(tmp_path).config()) == {
        "launcher": "slurm",
        "slurm_partition": "gpu",
        "mem_mb": 16000,  # of the rule, before the default
        "gres": "gpu:a800:8",
        "cpus_per_task": 1,
        "runtime": 2880,
    }


def test_sizes_and_times_of_a_profile_are_read_as_snakemake_reads_them(tmp_path: Path) -> None:
    text = "default-resources: {mem: 8GB}\nset-resources: {train_grpo: {mem: 900GB, runtime: 2d}}\n"
    (tmp_path / "config.yaml").write_text(text)
    config = Scene(tmp_path).config()
    found = profile_resources(tmp_path, config)
    assert (found["mem_mb"], found["runtime"]) == (900_000, 2880)
    (tmp_path / "config.yaml").write_text("default-resources: {runtime: soon}\n")
    with pytest.raises(ProfileError, match="'runtime' with value 'soon'"):
        profile_resources(tmp_path, config)


def test_plan_prints_the_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `submit` would hand it over, but for the name of the run."""
    scene = Scene(tmp_path)
    (tmp_path / "config.yaml").write_text(json.dumps(scene.raw()))
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/config.yaml").write_text(PROFILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")  # no Slurm
    assert main(["plan", "--sbatch", "config.yaml"]) == 0
    printed = capsys.readouterr()
    run = RunDirectory(tmp_path / "results/main/runs/RUN")
    assert printed.out == sbatch_script("main", 1, run, profile_resources(tmp_path / "slurm", scene.config()))
    assert "#SBATCH --gres=gpu:a800:8\n" in printed.out
    assert "main: not asked: sbatch: [Errno 2]" in printed.err

    (tmp_path / "slurm/config.yaml").write_text("default-resources: {slurm_extra: -N2}")
    assert main(["plan", "--sbatch", "config.yaml"]) == 1
    assert "'-N2' is not of the form" in capsys.readouterr().err
    assert main(["plan", "--sbatch", "config.yaml", "--profile", "absent"]) == 2
