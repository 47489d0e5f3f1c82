"""Runs on one machine take turns on its GPUs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from grpoflow.launch.gpus import gpus_of_run, take_gpus
from scene import Scene


def test_the_gpus_of_a_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    on_gpus = scene.config({"cluster": {"device": "cuda", "gpu": "A800-SXM4-80GB", "gpus_per_node": 4}})
    assert gpus_of_run(on_gpus, {}) == gpus_of_run(on_gpus, {"CUDA_VISIBLE_DEVICES": ""}) == [*"0123"]
    assert gpus_of_run(on_gpus, {"CUDA_VISIBLE_DEVICES": "2, 3"}) == ["2", "3"]
    assert gpus_of_run(scene.config(), {}) == []


@pytest.mark.parametrize(("wanted", "free"), [(["2", "3"], True), (["2", "1"], False), ([], True)])
def test_a_gpu_has_one_run(tmp_path: Path, wanted: list[str], free: bool) -> None:
    first = take_gpus(["0", "1"], tmp_path)
    assert first is not None
    with first:
        second = take_gpus(wanted, tmp_path)
        assert (second is not None) is free
        if second is not None:
            second.close()
        third = take_gpus(["2"], tmp_path)
        assert third is not None, "what could not have all holds none"
        third.close()
    later = take_gpus(wanted, tmp_path)
    assert later is not None
    later.close()


HOLD = """
import sys, time
from pathlib import Path
from grpoflow.launch.gpus import take_gpus
mine = take_gpus(["0"], Path(sys.argv[1]))
print(mine is not None, flush=True)
time.sleep(60)
"""


def test_a_killed_run_gives_its_gpus_back(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert take_gpus(["0"], tmp_path) is None
        other.send_signal(signal.SIGKILL)
        other.wait()
    mine = take_gpus(["0"], tmp_path)
    assert mine is not None
    mine.close()
