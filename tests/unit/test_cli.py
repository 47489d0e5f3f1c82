"""What people type, and what comes back: text, JSON, exit codes, and nothing heavy imported."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from configurations import config, model_directory
from grpoflow.cli import main

ROOT = Path(__file__).parents[2]
DEFAULT = str(ROOT / "config/config.yaml")


def written(path: Path, raw: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(raw))
    return str(path)


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(argv)
    return code, capsys.readouterr().out


def test_preflight_of_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = output(capsys, "preflight", DEFAULT)
    assert code == 0
    assert text.splitlines()[-1].startswith(("ok:", "warn:"))
    assert "\x1b" not in text  # not a terminal


def test_preflight_refuses_with_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path / "c.yaml", config({"trainer": {"global_batch_size": 66}}))
    code, text = output(capsys, "preflight", path)
    assert code == 1
    assert "trainer.global_batch_size = 66" in text
    assert "legal: 64 or 96" in text
    code, text = output(capsys, "preflight", path, "--format", "json")
    report = json.loads(text)
    assert (code, report["verdict"]) == (1, "refuse")
    assert report["problems"][0]["legal"] == [64, 96]


def test_faults_of_the_file_come_in_the_same_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: [")
    code, text = output(capsys, "preflight", str(path), "--format", "json")
    assert (code, json.loads(text)["problems"][0]["id"]) == (1, "configuration_file")


@pytest.mark.parametrize(
    "argv", [(), ("preflight",), ("preflight", "absent.yaml", "--nonsense"), ("fly", DEFAULT)]
)
def test_usage_is_two(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["preflight", "plan"])
def test_a_missing_file_is_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "absent.yaml"]) == 2
    assert "absent.yaml is not a file" in capsys.readouterr().err


def test_files_are_merged_in_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = written(tmp_path / "a.yaml", config())
    batch = written(tmp_path / "b.yaml", {"trainer": {"global_batch_size": 66}})
    repaired = written(tmp_path / "c.yaml", {"trainer": {"global_batch_size": 96}})
    assert output(capsys, "preflight", base, batch)[0] == 1
    assert output(capsys, "preflight", base, batch, repaired)[0] == 0


def test_plan_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    overlay = {"model": {"path": model_directory(tmp_path, "9B")}, "trainer": {"nodes": 2}}
    code, text = output(capsys, "plan", written(tmp_path / "c.yaml", config(overlay)), "--format", "json")
    plan = json.loads(text)
    assert code == 0
    assert {"batch", "layout", "placement", "memory", "cost", "stages"} <= plan.keys()
    stages = {stage["name"]: stage for stage in plan["stages"]}
    assert all({"name", "nodes", "gpus_per_node", "argv", "env"} <= stage.keys() for stage in plan["stages"])
    train = stages["train_grpo"]
    assert (train["nodes"], train["gpus_per_node"]) == (3, 8)
    assert train["argv"][1] == "rlhf"
    assert [command["env"]["NODE_RANK"] for command in train["commands"]] == ["0", "1"]
    assert train["env"]["MASTER_ADDR"] == "node1"
    assert "NPROC_PER_NODE" not in stages["rollout_server"]["env"]
    assert stages["sft" if "sft" in stages else "evaluate"]
    assert plan["cost"]["stages"]["train_grpo"]["gpu_hours"] > 0
    peak = plan["memory"]["trainer"][0]["peak_bytes"]
    assert 0 < peak < plan["memory"]["gpu"]["bytes"]


def test_plan_as_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    overlay = {
        "model": {"path": model_directory(tmp_path, "9B")},
        "trainer": {"nodes": 2, "parallel": "auto", "save_optimizer": False},
        "preflight": {"suppress": {"run_can_be_resumed": "exported elsewhere"}},
    }
    code, text = output(capsys, "plan", written(tmp_path / "c.yaml", config(overlay)))
    assert code == 0
    assert "alternatives:" in text
    assert "█" in text
    assert "exported elsewhere" in text
    assert "--global_batch_size 64" in text


def test_plan_of_a_refused_configuration_is_the_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = written(tmp_path / "c.yaml", config({"trainer": {"global_batch_size": 66}}))
    code, text = output(capsys, "plan", path, "--format", "json")
    assert (code, json.loads(text)["verdict"]) == (1, "refuse")


@pytest.mark.parametrize(
    ("overlay", "rules"),
    [
        (
            {"trainer": {"gpus": 9, "global_batch_size": 72, "parallel": {"tensor": 1}}},
            ["valid_trainer_gpus"],
        ),
        (
            {"trainer": {"backend": "swift", "parallel": "auto", "global_batch_size": 60}},
            ["global_batch_divisible_by_device_batch"],
        ),
        ({"cluster": {"gpu": "B200"}}, ["gpu_is_known"]),
        ({"rollout": {"nodes": 0, "gpus": 8}}, ["shared_node_has_room"]),
        ({"rollout": {"tensor_parallel_size": 16}}, ["server_fits_its_gpus"]),
        (
            {"model": {"path": "27B"}, "trainer": {"parallel": "auto", "recompute": "none"}},
            ["auto_layout_fits"],
        ),
    ],
)
def test_no_plan_without_traceback_when_a_refusal_is_switched_off(
    overlay: dict[str, Any], rules: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    raw = config(overlay, {"preflight": {"suppress": dict.fromkeys(rules, "a test")}})
    if raw["model"]["path"] == "27B":
        raw["model"]["path"] = model_directory(tmp_path, "27B")
    path = written(tmp_path / "c.yaml", raw)
    for command in ("preflight", "plan"):
        assert main([command, path, "--format", "json"]) == 1
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert {problem["id"] for problem in problems if problem["level"] == "refuse"} == {"plan_can_be_made"}
        assert "preflight.suppress." in problems[-1]["key"] or rules == ["shared_node_has_room"]


def test_plan_of_one_experiment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    overlay = {
        "experiments": {
            "low": {"trainer": {"learning_rate": 1.0e-7}},
            "bad": {"trainer": {"global_batch_size": 66}},
        }
    }
    path = written(tmp_path / "c.yaml", config(overlay))
    code, text = output(capsys, "plan", path, "--experiment", "low", "--format", "json")
    assert (code, json.loads(text)["experiment"]) == (0, "low")
    assert output(capsys, "plan", path, "--experiment", "bad")[0] == 1
    assert main(["plan", path, "--experiment", "absent"]) == 2


def test_plan_before_the_checkpoint_exists(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path / "c.yaml", config({"trainer": {"parallel": "auto"}}))
    code, text = output(capsys, "plan", path)
    assert code == 0
    assert "auto is resolved once config.json is there" in text


HEAVY = ("torch", "transformers", "swift", "snakemake", "vllm", "megatron", "matplotlib", "numpy")


@pytest.mark.parametrize("command", ["preflight", "plan"])
def test_nothing_heavy_is_imported(command: str) -> None:
    script = (
        "import sys, contextlib, io\n"
        "from grpoflow.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    code = main([{command!r}, {DEFAULT!r}])\n"
        f"print(code, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "0 []"


def test_module_and_program_are_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grpoflow", "preflight", DEFAULT, "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] in ("ok", "warn")
