"""`megatron export` on two ranks: the split of the weights that large models need loses nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from grpoflow.checkpoints import check_mcore_directory
from grpoflow.commands.base import Command
from grpoflow.commands.convert import to_hf, to_mcore
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.environment import clean_environment
from grpoflow.config import Config
from grpoflow.config.tuner import Parallel
from grpoflow.launch.ports import free_port
from grpoflow.launch.process import run
from scene import REAL_ENVIRONMENT, ROOT, Scene

pytestmark = pytest.mark.real

SPLITS = {
    "experts": ("moe_vlm", Parallel(expert=2)),
    "pipeline": ("moe_vlm", Parallel(pipeline=2)),
    "tensor": ("vlm", Parallel(tensor=2)),
}


def start(config: Config, name: str, command: Command, directory: Path) -> None:
    run(name, command, clean_environment(config, os.environ), directory / f"{name}.log")


@pytest.mark.parametrize("split", SPLITS)
def test_there_and_back(tmp_path: Path, split: str) -> None:
    kind, parallel = SPLITS[split]
    model = tmp_path / kind
    python, path = (
        REAL_ENVIRONMENT / "bin/python",
        {"PYTHONPATH": str(ROOT / "workflow"), "PATH": "/usr/bin:/bin"},
    )
    argv = [str(python), "-m", "grpoflow.demo.model", str(model), "--kind", kind]
    subprocess.run(argv, check=True, env={**path, "OMP_NUM_THREADS": "1"}, capture_output=True, timeout=120)
    there = {"environment": str(REAL_ENVIRONMENT)}
    (tmp_path / "scene").mkdir()
    config = Scene(tmp_path / "scene").config({"cluster": there, "model": {"path": str(model)}})

    def ranks() -> Ranks:
        return Ranks(2, master_port=free_port())

    checkpoint, back = tmp_path / "mcore", tmp_path / "back"
    start(config, "to_mcore", to_mcore(config, model, checkpoint, ranks(), parallel), tmp_path)
    check_mcore_directory(checkpoint)
    command = to_hf(config, checkpoint, model, back, ranks(), parallel, save_missing_weights=False)
    start(config, "to_hf", command, tmp_path)
    absent = tmp_path / "absent.json"
    absent.write_text("[]")
    compare = (str(python), "-m", "grpoflow.training_env.compare_tensors", str(back), str(model), str(absent))
    start(config, "compare", Command(compare, path), tmp_path)
