"""The stand-ins of the CPU environment: formulas, activation, refusal."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cpu_stack import STANDINS, CpuRun

HERE = Path(__file__).parent


def checks_of(program: str) -> list[str]:
    """Names of the functions of a program that are decorated with `check`."""
    tree = ast.parse((HERE / program).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "check" for d in node.decorator_list)
    ]


def results(output: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(output.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def layers(cpu_run: CpuRun) -> dict[str, str]:
    done = cpu_run("python", HERE / "layer_checks.py", env={"TORCHDYNAMO_DISABLE": "1"})
    return results(done.stdout)


@pytest.fixture(scope="module")
def parallel(cpu_run: CpuRun) -> dict[str, str]:
    done = cpu_run(
        *("python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        HERE / "parallel_checks.py",
        env={"TORCHDYNAMO_DISABLE": "1"},
        timeout=180,
    )
    return results(done.stdout)


@pytest.mark.real
@pytest.mark.parametrize("name", checks_of("layer_checks.py"))
def test_one_process(layers: dict[str, str], name: str) -> None:
    assert layers[name] == ""


@pytest.mark.real
@pytest.mark.parametrize("name", checks_of("parallel_checks.py"))
def test_two_ranks(parallel: dict[str, str], name: str) -> None:
    assert parallel[name] == ""


# ---------------------------------------------------------------- activation


@pytest.mark.real
def test_interpreter_start_imports_nothing_heavy(cpu_run: CpuRun) -> None:
    done = cpu_run("python", "-c", "import sys; print(*sorted(sys.modules))")
    loaded = set(done.stdout.split())
    assert "grpoflow_standins" in loaded
    assert not loaded & {"torch", "transformers", "swift", "vllm"}


@pytest.mark.real
def test_programs_without_megatron_keep_the_real_torch_cuda(cpu_run: CpuRun) -> None:
    program = """
import importlib.util, torch
from swift.pipelines.infer import rollout
from swift.rlhf_trainers import vllm_client
assert importlib.util.find_spec("transformer_engine") is None
assert torch.zeros(1).type() == "torch.FloatTensor"
try:
    torch.zeros(1, device="cuda")
except (AssertionError, RuntimeError):
    print("real")
"""
    assert cpu_run("python", "-c", program).stdout.split()[-1] == "real"


@pytest.mark.real
@pytest.mark.parametrize("module", ["swift.megatron", "mcore_bridge", "megatron.core"])
def test_each_way_into_megatron_activates(cpu_run: CpuRun, module: str) -> None:
    program = f"import {module}, torch, transformer_engine; print(torch.zeros(1, device='cuda').device)"
    assert cpu_run("python", "-c", program).stdout.split()[-1] == "cpu"


@pytest.mark.real
def test_spawned_children_have_the_hooks(cpu_run: CpuRun, tmp_path: Path) -> None:
    # vLLM spawns its workers, torchrun starts its ranks
    program = tmp_path / "spawn.py"
    program.write_text(
        "import multiprocessing, sys\n"
        "def child():\n"
        "    print('HookFinder' in [type(finder).__name__ for finder in sys.meta_path])\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    assert cpu_run("python", program).stdout.split() == ["True"]


def test_install_writes_a_file_that_registers_the_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import site  # noqa: PLC0415

    from grpoflow_standins.install import install  # noqa: PLC0415

    written = install(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [written.name]
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    site.addsitedir(str(tmp_path))
    site.addsitedir(str(tmp_path))
    assert [type(finder).__name__ for finder in sys.meta_path].count("HookFinder") == 1


# ---------------------------------------------------------------- refusal


@pytest.fixture(autouse=True)
def importable_standins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STANDINS)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of /dev and /proc/driver/nvidia."""
    from grpoflow_standins import gpu  # noqa: PLC0415

    (tmp_path / "gpus").mkdir()
    monkeypatch.setattr(gpu, "CONTROL_NODE", tmp_path / "nvidiactl")
    monkeypatch.setattr(gpu, "DRIVER_GPUS", tmp_path / "gpus")
    return tmp_path


@pytest.mark.parametrize("proof", ["nvidiactl", "gpus/0000:19:00.0"])
def test_refuses_where_a_gpu_is_visible(machine: Path, proof: str) -> None:
    from grpoflow_standins.gpu import refuse_real_gpu  # noqa: PLC0415

    (machine / proof).mkdir()
    with pytest.raises(RuntimeError, match=r"import of megatron\.core: .* must not be used") as refusal:
        refuse_real_gpu("megatron.core")
    assert str(machine / proof) in str(refusal.value)


@pytest.mark.usefixtures("machine")
def test_does_not_look_at_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpoflow_standins.gpu import visible_gpu  # noqa: PLC0415

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert visible_gpu() is None


def test_hooked_import_is_refused_before_the_module_runs(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import grpoflow_standins  # noqa: PLC0415

    (machine / "nvidiactl").touch()
    (tmp_path / "victim.py").write_text("raise AssertionError('was executed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(grpoflow_standins.HOOKS, "victim", ("megatron", "before"))
    monkeypatch.setattr(sys, "meta_path", [grpoflow_standins.HookFinder(), *sys.meta_path])
    with pytest.raises(RuntimeError, match="import of victim"):
        __import__("victim")


def test_other_imports_are_not_touched(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import grpoflow_standins  # noqa: PLC0415

    (machine / "nvidiactl").touch()
    monkeypatch.setattr(sys, "meta_path", [grpoflow_standins.HookFinder(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert isinstance(__import__("colorsys"), ModuleType)


@pytest.mark.real
def test_refusal_reaches_the_user_of_a_program(cpu_run: CpuRun, tmp_path: Path) -> None:
    # as on a machine with a driver: the path is moved by a sitecustomize, which runs after the .pth file
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib\n"
        "from grpoflow_standins import gpu\n"
        f"gpu.CONTROL_NODE = pathlib.Path({str(tmp_path / 'nvidiactl')!r})\n"
    )
    done = cpu_run(
        *("swift", "sft", "--model", tmp_path, "--dataset", "none"),
        env={"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode != 0
    assert "the CPU environment replaces CUDA-only code" in done.stderr


def test_readme_names_every_hook() -> None:
    import grpoflow_standins  # noqa: PLC0415

    text = (STANDINS / "README.md").read_text()
    names = {name for name, _ in grpoflow_standins.HOOKS.values()} - {"megatron"}
    assert {f"grpoflow_standins/{name}.py" for name in names | {"cuda"}} <= {
        word.strip("`") for word in text.split() if word.startswith("`grpoflow_standins/")
    }
