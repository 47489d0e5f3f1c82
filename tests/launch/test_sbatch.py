"""The script that is handed to sbatch, against golden files; GRPOFLOW_UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpoflow.launch.job import SubmissionFailed, sbatch_script
from grpoflow.plan.inputs import placement_of
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
    run, found = launch(scene)
    found = replace(found, placement=placement_of(scene.config(overlay)))
    script = sbatch_script(found, run, resources)
    comment = next(line for line in script.splitlines() if "--comment" in line)
    script = script.replace(comment.rpartition("-")[2], "DIRECTORY'")
    script = script.replace(str(tmp_path), "/project").replace(sys.executable, "/env/bin/python")
    golden = GOLDEN / f"{name}.sh"
    if "GRPOFLOW_UPDATE_GOLDEN" in os.environ:
        golden.write_text(script)
    assert script == golden.read_text()


def test_extra_options_that_cannot_be_read(tmp_path: Path) -> None:
    run, found = launch(Scene(tmp_path))
    with pytest.raises(SubmissionFailed, match="'-N2' is not of the form"):
        sbatch_script(found, run, {"slurm_extra": "-N2"})
