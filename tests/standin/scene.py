"""A small GRPO run for tests: the demo configuration, with either the stand-in or the real programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from grpoflow.config import Config, load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.demo.data import write as write_data
from grpoflow.launch.run import Launch, RunDirectory
from grpoflow.plan.inputs import placement_of
from standin import install

ROOT = Path(__file__).resolve().parents[2]
REAL_ENVIRONMENT = ROOT / ".envs/cpu"
STANDIN: dict[str, Any] = {"trainer": {"train_steps": 12, "save_steps": 4}}
UNTRAINED: dict[str, Any] = {"trainer": {"quality_gate": "warn"}}
"""What a model of random weights writes is garbage, and never ends."""


class Scene:
    """A directory with a model, a data set and an environment, and configurations that name them."""

    def __init__(self, directory: Path, *, real: bool = False):
        self.directory, self.real = directory, real
        self.environment = REAL_ENVIRONMENT if real else install(directory / "environment")
        self.model = directory / "vlm"
        self.data = directory / "arithmetic"
        write_data(self.data)
        if real:
            python = self.environment / "bin/python"
            argv = [str(python), "-m", "grpoflow.demo.model", str(self.model), "--kind", "vlm"]
            env = {"PYTHONPATH": str(ROOT / "workflow"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
            subprocess.run(argv, check=True, env=env, capture_output=True, timeout=120)
        else:
            self.model.mkdir()
            shutil.copy(ROOT / "tests/data/configs/qwen3.5-0.8B.json", self.model / "config.json")
            (self.model / "tokenizer_config.json").write_text("{}")

    @property
    def dataset(self) -> Path:
        return self.data / "train.jsonl"

    def raw(self, *overlays: dict[str, Any]) -> dict[str, Any]:
        """The demo configuration without SFT, as a plain dict."""
        raw: dict[str, Any] = merge(read_yaml(ROOT / "config/config.yaml"), self._here())
        for overlay in (UNTRAINED if self.real else STANDIN, *overlays):
            raw = merge(raw, overlay)
        return raw

    def config(self, *overlays: dict[str, Any]) -> Config:
        return load_experiments(self.raw(*overlays))["main"]

    def _here(self) -> dict[str, Any]:
        return {
            "model": {"path": str(self.model)},
            "data": {"train": str(self.dataset), "val": str(self.data / "val.jsonl")},
            # a model that was not trained earns nothing for sums, and from nothing no gradient follows
            "rewards": {
                "plugin": str(ROOT / "tests/standin/reward_of_text.py"),
                "functions": ["reward_of_text"],
                "weights": [1.0],
            },
            "cluster": {"environment": str(self.environment), "cache": str(self.directory / "cache")},
            "sft": None,
        }


def launch(scene: Scene, *overlays: dict[str, Any]) -> tuple[RunDirectory, Launch]:
    """A run of the scene, as the stages would set it up."""
    config = scene.config(*overlays)
    run = RunDirectory(scene.directory / "results/main/runs/0123456789ab")
    found = Launch(
        experiment="main",
        config=config,
        placement=placement_of(config),
        start=scene.model,
        mcore=None,
        dataset=scene.dataset,
        logs=scene.directory / "logs/main/train_grpo",
    )
    return run, found
