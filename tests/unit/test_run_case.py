"""benchmarks/gpu/run_case.py with stand-ins for the programs and the driver: what it writes of a run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GPU = ROOT / "benchmarks/gpu"
sys.path.insert(0, str(GPU))

import tables  # noqa: E402

# a trainer of 6 steps that saves after the fourth, and what probe.py would write in it
TRAINER = """
import json, os, pathlib, sys, time
output = pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1])
output.mkdir(exist_ok=True)
samples, ranks = os.environ["MEMORY_SAMPLES"], int(os.environ["NPROC_PER_NODE"])
def phase(name, seconds):
    row = {"phase": name, "begun": time.time(), "seconds": seconds, "peak": 7 * 2**30, "allocated": 2**30}
    with open(f"{samples}.phases.0", "a") as out:
        out.write(json.dumps(row) + chr(10))
for rank in range(ranks):
    row = {"allocated": 2**30, "peak": 7 * 2**30, "peak_reserved": 9 * 2**30, "reserved": 2**30}
    pathlib.Path(f"{samples}.{rank}").write_text(json.dumps(row) + chr(10))
phase("load", 3.0)
first = 5 if "--mcore_model" in sys.argv else 1
for step in range(first, 7):
    phase("sync", 0.5); phase("rollout", 4.0); phase("update", 2.0)
    row = {"loss": 0.0, "iteration": f"{step}/6", "completions/mean_length": 1000.0}
    with open(output / "logging.jsonl", "a") as out:
        out.write(json.dumps(row) + chr(10))
    if step == 4:
        (output / "checkpoint-4").mkdir()
        (output / "checkpoint-4/model.safetensors").write_bytes(bytes(10))
        (output / "checkpoint-4/other.pt").write_bytes(bytes(60))
        phase("save", 5.0); phase("export", 1.0)
    time.sleep(0.3)
time.sleep(60)
"""


@pytest.fixture
def run_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, in a directory with a model of the 9B shape; the trainer is TRAINER, the server sleeps."""
    driver = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 0,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: "NVIDIA H200",
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=3 << 20),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [],
        nvmlSystemGetDriverVersion=lambda: "1",
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    import predict  # noqa: PLC0415
    import run_case as module  # noqa: PLC0415 - needs the driver

    model = tmp_path / "resources/gpu/9b"
    model.mkdir(parents=True)
    (model / "config.json").write_text(predict.shape_file("9B").read_text())
    (model / "model.safetensors.index.json").touch()
    (tmp_path / "prefix").mkdir()
    machine = {"cluster": {"environment": str(tmp_path / "prefix")}}
    (tmp_path / "prefix/machine.yaml").write_text(yaml.safe_dump(machine))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "write_rows", lambda *_, **__: None)
    started = module.Programs.start

    def start(programs: Any, argv: list[str], env: dict[str, str], gpus: list[str], log: str) -> Any:
        calls.append((log, argv, gpus))
        program = TRAINER if log == "log" else "import time; time.sleep(60)"
        return started(programs, [sys.executable, "-c", program, *argv[1:]], env, gpus, log)

    calls: list[tuple[str, list[str], list[str]]] = []
    monkeypatch.setattr(module.Programs, "start", start)
    return SimpleNamespace(main=module.main, calls=calls, module=module, driver=module.pynvml)


def test_server_case_is_saved_resumed_and_written(run_case: Any, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert run_case.main(tmp_path / "prefix", "eight-9b-server", result, 30) == 0
    found = json.loads(result.read_text())

    (_, server, served), (_, trainer, trained), _, (_, again, _) = run_case.calls
    assert (served, trained) == (["0", "1"], ["2", "3", "4", "5", "6", "7"])
    assert server[server.index("--vllm_data_parallel_size") + 1] == "2"
    assert "--mcore_model" not in trainer
    assert again[again.index("--mcore_model") + 1].endswith("eight-9b-server/output/checkpoint-4")

    assert found["rc"] == 0
    assert [step["step"] for step in found["steps"]][:5] == [1, 2, 3, 4, 5]
    assert found["checkpoints"] == [{"name": "checkpoint-4", "hf": 10, "rest": 60}]
    assert len(found["allocator"]) == 6
    assert found["times"]["load"] == 3.0
    assert found["times"]["save"] == 6.0
    assert found["times"]["export"] == 1.0
    assert 0 < found["times"]["bring_up"] < 20
    assert found["seconds_per_step"]["rollout"] == 4.0
    assert found["host_memory_mib"]["peak"] >= found["host_memory_mib"]["before"] > 0
    assert found["resumed"]["from"] == "checkpoint-4"
    assert found["resumed"]["steps"][0]["step"] == 5
    assert not (tmp_path / "cases/eight-9b-server/output").exists()
    for row in (tables.speed_row(found), tables.files_row(found), tables.ranks_row(found)):
        assert "not taken" not in row


def test_result_is_written_when_the_time_is_up(run_case: Any, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert run_case.main(tmp_path / "prefix", "eight-9b-server", result, 1.0) == 0
    found = json.loads(result.read_text())
    assert found["rc"] == -9
    assert found["steps"]
    assert "resumed" not in found


def test_what_else_computes_on_the_gpus_is_counted(
    run_case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process, which is no part of the case, and one that has ended are on a GPU of the case; the parent
    of this one is on a GPU that the case does not use."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    here = {7: [os.getpid(), ended.pid], 8: [os.getppid()]}
    monkeypatch.setattr(run_case.driver, "nvmlDeviceGetCount", lambda: 9)
    monkeypatch.setattr(
        run_case.driver,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda gpu: [SimpleNamespace(pid=pid, usedGpuMemory=5 << 20) for pid in here.get(gpu, [])],
    )
    result = tmp_path / "result.json"
    assert run_case.main(tmp_path / "prefix", "eight-9b-server", result, 2) == 0
    found = json.loads(result.read_text())
    assert found["other_processes"] == 1
    assert found["driver_peak_mib"] == {}
    assert found["machine"] == [f"GPU-{index}" for index in range(9)]
    assert found["used_before_mib"] == [3] * 9


def test_a_cold_case_has_a_triton_cache_of_its_own(run_case: Any, tmp_path: Path) -> None:
    predict = run_case.module.predict
    for name in ("fla-0.4.1", "speed-colocate"):
        case = predict.cases()[name]
        config = predict.configuration(case, tmp_path / "resources/gpu/9b")
        programs = run_case.module.Programs(case, config, tmp_path)
        own = programs.env.get("TRITON_CACHE_DIR")
        assert own == (str(tmp_path / "triton") if name == "fla-0.4.1" else None)
