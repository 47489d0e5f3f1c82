"""What a node of the cluster is like: `python -m grpoflow.training_env.probe DIRECTORY FIRST_PORT`.

One process per node; with NNODES > 1 they meet at MASTER_ADDR:MASTER_PORT. Each writes DIRECTORY/RANK.json.
Nothing that is missing or broken ends it: it is written down.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

PACKAGES = re.compile(
    r"torch|torchvision|triton|transformer.engine.*|nvidia.*|fla.core|flash.linear.attention|flash.attn.*|"
    r"tilelang|apache.tvm.ffi|msgspec|flashinfer.*|vllm.*|transformers|ms.swift|megatron.core|mcore.bridge|peft|"
    r"trl|deepspeed|causal.conv1d|apex|numpy|qwen.vl.utils|tokenizers|safetensors"
)
IMPORTS = ("torch", "transformers", "swift", "vllm", "megatron.core", "transformer_engine.pytorch", "fla")
LIBRARIES = ("libcudnn.so", "libcublas.so", "libnccl.so")
PORTS = 256
CANARY_SECONDS = 60.0
MEET_SECONDS = 300
REDUCED_BYTES = 1 << 28
REPEATS = 5


def versions() -> dict[str, str]:
    """Installed packages that a run depends on."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():  # in the order of sys.path: the first one is imported
        found.setdefault(distribution.metadata["Name"].lower().replace("_", "-"), distribution.version)
    return {name: found[name] for name in sorted(found) if PACKAGES.fullmatch(name)}


def imports() -> dict[str, str]:
    """The error of each module that cannot be imported; nothing for one that is not installed."""
    wrong = {}
    for name in IMPORTS:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                wrong[name] = repr(error)
        except Exception as error:
            wrong[name] = repr(error)[:500]
    return wrong


def libraries() -> dict[str, list[str]]:
    """Every copy of the CUDA libraries that a program could load: two of different versions get mixed up."""
    told = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    roots = [*map(Path, sys.path), *map(Path, told), *_system_directories()]
    found = {}
    for name in LIBRARIES:
        files = {
            str(path.resolve())
            for root in roots
            if root.is_dir()
            for pattern in (f"{name}*", f"nvidia/*/lib/{name}*", f"*/lib/{name}*")
            for path in root.glob(pattern)
        }
        found[name.removesuffix(".so")] = sorted(files)
    return found


def _system_directories() -> set[Path]:
    """Where the system's loader finds CUDA's libraries, such as a cuDNN of the distribution."""
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        known = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return set()
    lines = (line for line in known.splitlines() if line.strip().startswith(LIBRARIES))
    return {Path(line.rpartition("=> ")[2]).parent for line in lines}


def gpus() -> list[dict[str, Any]]:
    import torch  # noqa: PLC0415

    found = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        name = device.name.removeprefix("NVIDIA ")
        found.append(
            {"name": name, "capability": f"{device.major}.{device.minor}", "bytes": device.total_memory}
        )
    return found


def cuda() -> dict[str, Any]:
    """The CUDA that torch was built for, the newest one that the driver can run, and the libraries loaded."""
    import torch  # noqa: PLC0415

    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        version.value = 0
    newest = f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else None
    nvidia_smi = shutil.which("nvidia-smi")
    asked = (
        [nvidia_smi, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"] if nvidia_smi else []
    )
    driver = (
        subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() if asked else ""
    )
    return {
        "available": torch.cuda.is_available(),
        "torch": torch.version.cuda,
        "driver": driver or None,
        "driver_cuda": newest,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
    }


def attention() -> None:
    """One step of the attention that training uses, with its gradient."""
    import torch  # noqa: PLC0415

    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    # head_dim 256, as Qwen3.5 has it
    q, k, v = (torch.randn(1, 4, 256, 256, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.sum().backward()
    if not bool(torch.isfinite(q.grad).all()):
        raise RuntimeError("the gradient is not finite")


def gated_delta_rule() -> None:
    """One step of the linear attention of Qwen3.5, in the kernels of fla, with its gradient."""
    import torch  # noqa: PLC0415
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # noqa: PLC0415

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    q, k, v = (random(1, 256, 4, 128) for _ in range(3))
    gate = torch.nn.functional.logsigmoid(random(1, 256, 4).float())
    out, _ = chunk_gated_delta_rule(q, k, v, gate, random(1, 256, 4).sigmoid(), use_qk_l2norm_in_kernel=True)
    out.float().sum().backward()
    if not bool(torch.isfinite(v.grad).all()):
        raise RuntimeError("the gradient is not finite")


def tried(kernel: Callable[[], None]) -> dict[str, Any]:
    begun = time.monotonic()
    try:
        kernel()
    except Exception as error:
        return {"error": repr(error)[:500], "seconds": round(time.monotonic() - begun, 2)}
    return {"error": None, "seconds": round(time.monotonic() - begun, 2)}


def kernels() -> dict[str, Any]:
    import torch  # noqa: PLC0415

    found = {"attention": tried(attention)}
    if torch.cuda.is_available():
        found["gated_delta_rule"] = tried(gated_delta_rule)
    return found


def free_ports(first: int) -> int:
    """How many of the ports from `first` on are free."""
    count = 0
    for port in range(first, first + PORTS):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            count += 1
    return count


def canary(directory: Path, rank: int, size: int) -> str | None:
    """Write a file and wait for those of the other nodes; return what was not seen."""
    (directory / f"canary-{rank}").write_text(str(rank))
    deadline = time.monotonic() + CANARY_SECONDS
    missing = [f"canary-{other}" for other in range(size)]
    while missing:
        missing = [name for name in missing if not (directory / name).is_file()]
        if missing and time.monotonic() > deadline:
            return f"{', '.join(missing)} not seen in {directory} for {CANARY_SECONDS:.0f} s"
        time.sleep(0.2)
    return None


def network(rank: int, size: int) -> dict[str, Any]:
    """An all-reduce between the nodes, and its bus bandwidth as nccl-tests counts it."""
    from datetime import timedelta  # noqa: PLC0415

    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    gpu = torch.cuda.is_available()
    found: dict[str, Any] = {"backend": "nccl" if gpu else "gloo", "nodes": size, "error": None}
    try:
        dist.init_process_group(
            found["backend"], rank=rank, world_size=size, timeout=timedelta(seconds=MEET_SECONDS)
        )
        tensor = torch.ones(REDUCED_BYTES // 4, device="cuda" if gpu else "cpu")
        dist.all_reduce(tensor)
        if gpu:
            torch.cuda.synchronize()
        begun = time.monotonic()
        for _ in range(REPEATS if gpu else 1):
            dist.all_reduce(tensor)
        if gpu:
            torch.cuda.synchronize()
        seconds = (time.monotonic() - begun) / (REPEATS if gpu else 1)
        found["gb_per_second"] = round(2 * (size - 1) / size * REDUCED_BYTES / seconds / 1e9, 3)
        dist.destroy_process_group()
    except Exception as error:
        found["error"] = repr(error)[:500]
    return found


def main(argv: list[str]) -> None:
    directory, first_port = Path(argv[0]), int(argv[1])
    rank, size = int(os.environ.get("NODE_RANK", "0")), int(os.environ.get("NNODES", "1"))
    facts: dict[str, Any] = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "canary": canary(directory, rank, size),
        "shm_bytes": shutil.disk_usage("/dev/shm").free,
        "ports": {"first": first_port, "free": free_ports(first_port), "of": PORTS},
        "versions": versions(),
        "libraries": libraries(),
        "imports": imports(),
    }
    if "torch" in facts["versions"] and "torch" not in facts["imports"]:
        facts |= {"cuda": cuda(), "gpus": gpus(), "kernels": kernels()}
        facts["network"] = network(rank, size) if size > 1 else None
    temporary = directory / f".{rank}.tmp"
    temporary.write_text(json.dumps(facts, indent=2))
    temporary.replace(directory / f"{rank}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
