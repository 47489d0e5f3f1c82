"""Build the bundle of wheels that is copied to a GPU machine without network.

    python benchmarks/gpu/build_bundle.py OUT EXTENSION.whl [--moe]

For Python 3.12, torch 2.11.0+cu130 and Hopper (sm_90). Every part of `pins/*.txt` becomes one
OUT/PART.tar.xz. EXTENSION.whl is Transformer Engine's PyTorch extension: build it with build_extension.sh.
Without --moe the kernels of mixtures of experts stay out of vLLM; those of Megatron, grouped GEMM included,
are in Transformer Engine. Needs binutils (strip) and xz; takes about 5 minutes. On a machine with network,
install `pins/*.txt` with pip instead.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import elf

PINS = Path(__file__).parent / "pins"
PARTS = ("base", "te", "vllm", "transformers", "fla", "orchestrator", "deepspeed")
OTHERS = ("fla-0.4.1", "fla-0.6.0")  # never beside "fla" in one environment
GLIBC = (39, 35, 34, 31, 28, 27, 24, 17)
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]

UNUSED = {
    "base": ["modelscope/models"],
    "te": ["transformer_engine/jax"],
    "vllm": [
        "vllm/vllm-rs",
        "vllm/third_party/deep_gemm/include",
        "vllm/third_party/deep_gemm/_C.cpython-31[0134]*",
        "vllm/model_executor/layers/fused_moe/configs/*.json",
        "vllm/model_executor/layers/quantization/utils/configs/*.json",
        "mistral_common/data/*",
        "pycountry/locales",
        "xgrammar/lib",
        "xgrammar/include",
    ],
    # the solvers of PuLP; the profiles' scheduler needs none
    "orchestrator": [
        "pulp/solverdir/cbc",
        "docutils/writers/*/*.sty",
    ],
}


def download(part: str, wheels: Path) -> None:
    if part == "deepspeed":  # a source distribution; its operators are not needed
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"]
        argv = [*pip, "-w", str(wheels), "-r", str(PINS / f"{part}.txt")]
        subprocess.run(argv, check=True, env=os.environ | {"DS_BUILD_OPS": "0"})
        return
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    target = ["--python-version", "3.12", "--implementation", "cp", *platforms]
    subprocess.run([*pip, *target, "-d", str(wheels), "-r", str(PINS / f"{part}.txt")], check=True)


def unpack(wheel: Path, tree: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tree)
    for data in tree.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, tree, dirs_exist_ok=True)
        shutil.rmtree(data)


def bf16_of_sm90(kind: int, arch: int, payload: bytes) -> bool:
    """FlashAttention 3 has one entry per type, of which bf16 alone is trained, and one of all types that adds
    up split sequences: long prompts need it."""
    other = b"half_t" in payload or b"float_e4m3_t" in payload
    return elf.is_sm90(kind, arch, payload) and (b"Combine" in payload or not other)


def nothing(*_: object) -> bool:
    """The library stays importable, but has no kernels."""
    return False


def slim_vllm(tree: Path, moe: bool) -> None:
    vllm = tree / "vllm"
    for name in ("_C", "_C_stable_libtorch", "_flashmla_C", "_flashmla_extension_C"):
        elf.prune(vllm / f"{name}.abi3.so")
    elf.prune(vllm / "_moe_C.abi3.so", elf.is_sm90 if moe else nothing)
    elf.prune(vllm / "vllm_flash_attn/_vllm_fa2_C.abi3.so", nothing)
    elf.prune(vllm / "vllm_flash_attn/_vllm_fa3_C.abi3.so", bf16_of_sm90)


def pack(tree: Path, archive: Path) -> None:
    already = ("_vllm_fa", "libtransformer_engine")
    for library in tree.rglob("*.so*"):
        if library.stat().st_size > 300_000 and not library.name.startswith(already):
            elf.strip(library)
    for cache in list(tree.rglob("__pycache__")):
        shutil.rmtree(cache)
    with archive.open("wb") as output:
        tar = subprocess.Popen(
            ["tar", "--sort=name", "-C", str(tree), "-cf", "-", "."], stdout=subprocess.PIPE
        )
        subprocess.run(["xz", "-T1", "-9"], stdin=tar.stdout, stdout=output, check=True)
    if tar.wait():
        raise SystemExit(f"tar failed on {tree}")


def build(part: str, out: Path, extension: Path, moe: bool) -> Path:
    wheels, tree = out / "wheels" / part, out / "trees" / part
    wheels.mkdir(parents=True, exist_ok=True)
    download(part, wheels)
    shutil.rmtree(tree, ignore_errors=True)
    for wheel in [*sorted(wheels.glob("*.whl")), *([extension] if part == "te" else [])]:
        unpack(wheel, tree)
    for pattern in UNUSED.get(part, []):
        for path in tree.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if part == "vllm":
        slim_vllm(tree, moe)
    if part == "te":
        elf.prune(tree / "transformer_engine/wheel_lib/libtransformer_engine.so")
    archive = out / f"{part}.tar.xz"
    pack(tree, archive)
    return archive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("extension", type=Path)
    parser.add_argument("--moe", action="store_true")
    parser.add_argument("--part", choices=PARTS + OTHERS, action="append", help="only these parts")
    args = parser.parse_args()
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    total = 0
    for part in args.part or PARTS:
        size = build(part, args.out, args.extension, args.moe).stat().st_size
        total += size
        print(f"{part}: {size / 2**20:.2f} MiB", flush=True)
    print(f"together: {total / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
