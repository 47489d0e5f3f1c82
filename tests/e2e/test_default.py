"""The main job of the README, run once for real on the CPU stack."""

from __future__ import annotations

import json
import os
import subprocess
from math import sqrt
from pathlib import Path
from statistics import mean, variance

import pytest
from workspace import BIN, ROOT, Workspace, left_processes

pytestmark = pytest.mark.real

Run = tuple[Workspace, str]


def rewards(workspace: Workspace, experiment: str) -> list[float]:
    directory = workspace.json(f"results/{experiment}/train.json")["directory"]
    lines = (Path(directory) / "output/logging.jsonl").read_text().splitlines()
    return [record["reward"] for line in lines if "reward" in (record := json.loads(line))]


def learned(found: list[float]) -> bool:
    """From a start between 0.2 and 0.5, at least 0.10 more at the end, and that is no noise.

    The reward of a step varies by 0.13 with its 8 prompts: of runs that learn nothing, one in seven would
    gain 0.10 between the first and the last 4 of 40 steps.
    """
    tenth = len(found) // 10
    first, last = found[:tenth], found[-tenth:]
    gain = mean(last) - mean(first)
    noise = sqrt((variance(first) + variance(last)) / tenth)
    return 0.2 <= mean(first) <= 0.5 and gain >= max(0.10, 3 * noise)


def test_reward_rises(default_run: Run) -> None:
    found = rewards(default_run[0], "main")
    assert len(found) == 150
    assert learned(found)


def test_without_learning_the_same_check_fails(default_run: Run) -> None:
    workspace, _ = default_run
    control = workspace.write(
        "control.yaml", "experiments: {control: {trainer: {learning_rate: 0, train_steps: 40}}}\n"
    )
    workspace.snakemake("--configfile", "config/config.yaml", control, "--until", "train_grpo")
    found = rewards(workspace, "control")
    assert len(found) == 40
    assert not learned(found)


def test_held_out_prompts_improve(default_run: Run) -> None:
    evaluation = default_run[0].json("results/main/evaluation/manifest.json")
    assert evaluation["prompts"] >= 400
    assert evaluation["samples"] == 8
    difference = evaluation["sampled"]["difference"]
    assert difference["confidence"] == 0.95
    assert 0 < difference["low"] <= difference["mean"] <= difference["high"]


def test_held_out_prompts_are_not_in_the_training_data(default_run: Run) -> None:
    data = default_run[0].path / "resources/demo/arithmetic"

    def prompts(name: str) -> set[str]:
        return {json.loads(line)["messages"][0]["content"] for line in (data / name).read_text().splitlines()}

    assert prompts("val.jsonl").isdisjoint(prompts("train.jsonl") | prompts("sft.jsonl"))


def test_summary_tells_where_everything_is(default_run: Run) -> None:
    workspace, printed = default_run
    assert "reward on held-out data" in printed
    assert "95% interval" in printed
    assert "snakemake --profile slurm" in printed
    for path in ("results/main/export/model", "results/report.html"):
        assert str(workspace.path / path) in printed
        assert (workspace.path / path).exists()


def test_exported_model_gives_the_logits_of_the_trained_one(default_run: Run) -> None:
    """An independent look, beside the check of the stage itself."""
    workspace, _ = default_run
    model = workspace.path / "results/main/export/model"
    checkpoint = workspace.json("results/main/train.json")["checkpoint"]
    program = (
        "import sys, torch\n"
        "from transformers import AutoModelForImageTextToText as M\n"
        "ids = torch.arange(40, 60)[None]\n"
        "a, b = (M.from_pretrained(d)(input_ids=ids).logits for d in sys.argv[1:])\n"
        "assert torch.equal(a, b) and a.isfinite().all() and a.std() > 0\n"
    )
    subprocess.run(
        [ROOT / ".envs/cpu/bin/python", "-c", program, model, checkpoint],
        check=True,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert (model / "generation_config.json").is_file()


def test_status_knows_the_run(default_run: Run) -> None:
    shown = default_run[0].run(BIN / "grpoflow", "status").stdout
    assert "main" in shown
    assert "150" in shown


def test_nothing_is_left_to_do(default_run: Run) -> None:
    assert "Nothing to be done" in default_run[0].snakemake("--dry-run").stdout


AFTER = {
    "results/shared/sft/*/manifest.json": {
        *("sft", "convert_to_mcore", "rollout_server", "train_grpo", "evaluate", "export_hf", "report"),
    },
    "results/main/endpoints.json": {"rollout_server", "train_grpo", "evaluate", "export_hf", "report"},
    "results/main/evaluation/manifest.json": {"evaluate", "export_hf", "report"},
    "results/main/export/manifest.json": {"export_hf", "report"},
}


@pytest.mark.parametrize("manifest", AFTER)
def test_a_removed_manifest_runs_its_stage_and_what_follows(default_run: Run, manifest: str) -> None:
    workspace, _ = default_run
    (path,) = workspace.path.glob(manifest)
    aside = path.with_name("aside")
    path.rename(aside)
    try:
        assert workspace.planned() - {"all"} == AFTER[manifest]
    finally:
        aside.rename(path)


def test_an_execution_key_runs_nothing_again(default_run: Run) -> None:
    workspace, _ = default_run
    overlay = workspace.write(
        "execution.yaml",
        "cluster: {first_port: 21000, env: {NCCL_DEBUG: INFO}}\nrollout: {startup_timeout: 400}\n",
    )
    shown = workspace.snakemake("--dry-run", "--configfile", "config/config.yaml", overlay)
    assert "Nothing to be done" in shown.stdout


def test_another_learning_rate_trains_again_from_the_same_checkpoint(default_run: Run) -> None:
    workspace, _ = default_run
    overlay = workspace.write("rate.yaml", "trainer: {learning_rate: 0.0005}\n")
    planned = workspace.planned("--configfile", "config/config.yaml", overlay)
    assert {"train_grpo", "evaluate"} <= planned
    assert planned.isdisjoint(
        {"cache_dataset", "cache_sft", "sft", "convert_to_mcore", "demo_model", "demo_data"}
    )


def test_another_reward_trains_again_from_the_same_checkpoint(default_run: Run) -> None:
    """A warm start depends on no reward and must not be repeated, let alone be replaced under a live run."""
    workspace, _ = default_run
    overlay = workspace.write("weights.yaml", "rewards: {weights: [1.0, 0.3]}\n")
    planned = workspace.planned("--configfile", "config/config.yaml", overlay)
    assert {"cache_dataset", "train_grpo", "evaluate"} <= planned
    assert planned.isdisjoint({"cache_sft", "sft", "convert_to_mcore"})


def test_no_process_is_left(default_run: Run) -> None:
    assert left_processes(default_run[0].path) == {}


def test_another_experiment_runs_no_shared_stage_again(default_run: Run) -> None:
    workspace, _ = default_run
    sweep = workspace.write("sweep.yaml", "experiments: {main: {}, seed43: {trainer: {seed: 43}}}\n")
    planned = workspace.planned("--configfile", "config/config.yaml", sweep)
    assert "train_grpo" in planned
    assert planned.isdisjoint({"cache_dataset", "cache_sft", "sft", "convert_to_mcore"})
