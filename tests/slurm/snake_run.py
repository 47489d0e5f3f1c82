"""An RL job that Snakemake drives: the two RL rules of the real workflow, everything before them made up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster_client import ClusterClient
from drive import DATASET, Items
from grpoflow.stages.dag import Dag
from rl_run import Driver, RlRun
from scene import ROOT

PARTS = ("Snakefile", "workflow", "config", "profiles", "slurm")
RULES = ("rollout_server", "train_grpo")


class SnakeRun(RlRun):
    """A working directory in which `snakemake --profile slurm` has nothing left to do but the RL job."""

    def __init__(self, cluster: ClusterClient, directory: Path, *overlays: dict[str, Any], **resources: Any):
        super().__init__(cluster, directory, *overlays, **resources)
        for part in PARTS:
            (directory / part).symlink_to(ROOT / part)
        (directory / "run.json").write_text(json.dumps(self.raw))
        dag, main = Dag(self.raw), Items(experiment="main")
        dataset = directory / dag.dataset(main)
        dataset.parent.mkdir(parents=True)
        (dataset.parent / "train.jsonl").write_text(self.scene.dataset.read_text())
        dataset.write_text(json.dumps(DATASET))
        mcore = directory / str(dag.mcore(main))
        mcore.parent.mkdir(parents=True)
        mcore.write_text(json.dumps({"checkpoint": "checkpoint"}))
        plan = directory / "results/main/plan.json"
        plan.parent.mkdir(parents=True)
        plan.write_text("{}")

    def snakemake(self, *arguments: str) -> Driver:
        """Start `snakemake --profile slurm` for the result of the training."""
        resources = [
            f"{rule}:{name}={value}"
            for rule in RULES
            for name, value in self.resources.items()
            if name != "launcher"
        ]
        argv = [
            *(sys.executable, "-m", "snakemake", "--profile", "slurm", "--configfile", "run.json"),
            *("--allowed-rules", *RULES, "--latency-wait", "2", "--set-resources", *resources),
            # the plugin's thread sleeps that long before Snakemake can end
            *("--slurm-init-seconds-before-status-checks", "2"),
            *(arguments or ("--", "results/main/train.json")),
        ]
        log = self.directory / f"driver-{len(self.drivers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                cwd=self.directory,
                env=self.cluster.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.drivers.append(process)
        return Driver(process, log)
