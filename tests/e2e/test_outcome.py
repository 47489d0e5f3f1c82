"""What is made of a LoRA run: the adapter on its own from both backends, and a benchmark with EvalScope.

EvalScope is installed into a copy of the environment first: 10 s with warm caches, a minute without."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from workspace import ROOT, Workspace, left_processes, make_workspace

pytestmark = [pytest.mark.real, pytest.mark.network]

EVALSCOPE = "evalscope==1.14.1"
EXPERIMENTS = """
cluster: {environment: environment}
trainer: {train_steps: 2, save_steps: 2, quality_gate: warn, learning_rate: 1.0e-2, tuner: lora}
evaluate: {samples: 1}
export: {lora: adapter}
experiments:
  swift:
    trainer: {backend: swift}
    evaluate:
      benchmarks:
        datasets: [general_mcq, general_qa]
        limit: 4
        args:
          eval_dataset_args:
            general_mcq: {local_path: sums, subset_list: [sums]}
            general_qa: {local_path: sums, subset_list: [sums]}
  megatron: {}
"""
NAMES = ("swift", "megatron")


def link(source: str, target: str) -> str:
    """Copy a file without its content where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def copy_of_the_environment(target: Path) -> None:
    """A copy in which more can be installed: the one of .envs is made from a lock."""
    shutil.copytree(ROOT / ".envs/cpu", target, symlinks=True, copy_function=link)
    for path in (target / "bin").iterdir():
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            path.unlink()  # the other name of it is in .envs
            path.write_bytes(content.replace(bytes(ROOT / ".envs/cpu"), bytes(target), 1))
            path.chmod(0o755)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_workspace(tmp_path_factory.mktemp("outcome"))
    copy_of_the_environment(workspace.path / "environment")
    python = workspace.path / "environment/bin/python"
    installed = workspace.run(python, "-m", "pip", "freeze", "--all").stdout
    workspace.write("installed.txt", "".join(f"{line}\n" for line in installed.splitlines() if "==" in line))
    pip = ("-m", "pip", "install", "-q", "--no-compile", "--constraint", "installed.txt")
    workspace.run(python, *pip, EVALSCOPE)
    (workspace.path / "sums").mkdir()
    rows = [(n, {"A": str(n + 1), "B": str(n + 2), "C": str(n + 9)}) for n in range(1, 6)]
    questions = [{"question": f"What is {n} plus 2?", **choices, "answer": "B"} for n, choices in rows]
    answers = [{"query": f"What is {n} plus 2?", "response": str(n + 2)} for n, _ in rows]
    for name, lines in (("sums_val", questions), ("sums", answers)):
        workspace.write(f"sums/{name}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    overlay = workspace.write("outcome.yaml", EXPERIMENTS)
    workspace.snakemake("--configfile", "config/config.yaml", overlay)
    return workspace


@pytest.mark.parametrize("name", NAMES)
def test_the_adapter_is_exported_and_gives_the_logits_of_the_merged_model(
    outcome: Workspace, name: str
) -> None:
    export = outcome.json(f"results/{name}/export/manifest.json")
    model = outcome.path / f"results/{name}/export/model"
    assert {path.name for path in model.iterdir()} == {
        *("adapter_config.json", "adapter_model.safetensors", "README.md")
    }
    assert export["sha256"].keys() == {path.name for path in model.iterdir()}
    base = Path(json.loads((model / "adapter_config.json").read_text())["base_model_name_or_path"])
    assert (base / "config.json").is_file()
    checks = export["checks"]
    assert checks["adapter"]["modules"] > 4
    assert checks["loaded_by"] == ["peft"]
    logits = checks["logits"]
    # in float32 what is left is a thousandth of what the adapter changes
    assert logits["mean_difference"] < 1e-3 * logits["without_adapter"]
    assert "library_name: peft" in (model / "README.md").read_text()


def test_benchmarks_of_both_models_are_in_the_evaluation(outcome: Workspace) -> None:
    found = outcome.json("results/swift/evaluation/manifest.json")["benchmarks"]
    assert found == outcome.json("results/swift/benchmarks/manifest.json")["results"]
    main = {(entry["dataset"], entry["metric"]): entry for entry in found if entry["main"]}
    assert main.keys() == {
        ("general_mcq", "accuracy mean"),
        ("general_qa", "rouge mean statistic=recall variant=l"),
    }
    assert all(entry["rows"] == 4 for entry in found)
    assert all(0 <= entry[model] <= 1 for entry in found for model in ("sft", "grpo"))
    page = (outcome.path / "results/swift/report.html").read_text()
    assert "general_mcq accuracy mean" in page
    assert (
        "| general_mcq accuracy mean | 4 |"
        in (outcome.path / "results/swift/export/model/README.md").read_text()
    )


def test_only_what_was_asked_for_was_run(outcome: Workspace) -> None:
    assert not (outcome.path / "results/megatron/benchmarks").exists()
    assert "benchmarks" not in outcome.json("results/megatron/evaluation/manifest.json")
    assert outcome.planned("--configfile", "config/config.yaml", "outcome.yaml") == set()


def test_both_models_answered_for_themselves_with_the_settings_of_training(outcome: Workspace) -> None:
    asked: dict[str, list[dict[str, Any]]] = {}
    for model in ("sft", "grpo"):
        predictions = outcome.path / f"results/swift/benchmarks/{model}/native/predictions"
        (path,) = predictions.rglob("general_mcq_sums.jsonl")
        asked[model] = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(asked[model]) == 4
    log = (outcome.path / "logs/swift/benchmarks/latest/eval-grpo.log").read_text()
    assert "max_tokens" in log
    # nothing was appended to a file beside the results or in a model
    assert not (outcome.path / "result").exists()
    assert not list(outcome.path.glob("results/shared/sft/*/model/eval_result*"))


def test_no_process_is_left(outcome: Workspace) -> None:
    assert left_processes(outcome.path) == {}
