"""Make the environment of the bundle on a GPU machine.

    python3 setup_machine.py PREFIX BUNDLE [BUNDLE ...]    # a directory of parts, or a part

PREFIX becomes a virtual environment on top of the machine's own Python 3.12 (which holds torch 2.11.0+cu130
and Triton): the parts of the bundle first, the machine's packages behind them. PREFIX/bin has `python`,
`swift`, `megatron` and `snakemake`. May be called again with further parts. Standard library only.

PREFIX/machine.yaml is a configuration overlay with what is particular to the machine: give it to Snakemake
with `--configfile`. PREFIX/activate.sh sets what must be set before Snakemake starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from configparser import ConfigParser
from pathlib import Path

PASSED_ON = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_")
"""Settings of the machine's administrator, which must reach every program: the workflow starts programs in an
environment of their own."""

# vLLM's sampler and its Gated DeltaNet prefill default to FlashInfer on Hopper; the bundle has none
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "OMP_NUM_THREADS": "4",
}


def unpack(prefix: Path, bundles: list[Path]) -> None:
    """Unpack all parts side by side."""
    site = site_packages(prefix)
    parts = [part for bundle in bundles for part in sorted(bundle.glob("*.tar.xz")) or [bundle]]
    running = [subprocess.Popen(["tar", "-xJf", str(part), "-C", str(site)]) for part in parts]
    if failed := [part.name for part, tar in zip(parts, running, strict=True) if tar.wait()]:
        raise SystemExit(f"tar failed on {', '.join(failed)}")


def site_packages(prefix: Path) -> Path:
    return next(prefix.glob("lib/python3*/site-packages"))


def name_of(dist_info: Path) -> str:
    return dist_info.name.partition("-")[0].replace("_", "-").lower()


def link_metadata(site: Path, machine: Path) -> None:
    """Show the machine's packages beside those of the bundle: preflight and manifests read the names of the
    metadata directories."""
    ours = {name_of(path) for path in site.glob("*.dist-info") if not path.is_symlink()}
    for path in site.glob("*.dist-info"):
        if path.is_symlink() and name_of(path) in ours:
            path.unlink()
    for path in machine.glob("*.dist-info"):
        if name_of(path) not in ours and not (site / path.name).exists():
            (site / path.name).symlink_to(path)


def write_scripts(prefix: Path) -> None:
    """Console scripts of every unpacked package, as pip would write them."""
    for file in site_packages(prefix).glob("*.dist-info/entry_points.txt"):
        entries = ConfigParser(delimiters="=")
        entries.optionxform = str  # type: ignore[method-assign,assignment]
        entries.read(file)
        for name, target in entries.items("console_scripts") if "console_scripts" in entries else ():
            module, _, function = target.partition("[")[0].strip().partition(":")
            script = prefix / "bin" / name
            body = f"import sys\nfrom {module} import {function.split('.')[0]}\nsys.exit({function}())\n"
            script.write_text(f"#!{prefix}/bin/python\n{body}")
            script.chmod(0o755)


def main(argv: list[str]) -> None:
    prefix, bundles = Path(argv[0]).absolute(), [Path(argument) for argument in argv[1:]]
    if not (prefix / "bin/python").exists():
        venv.create(prefix, symlinks=True, with_pip=False)
    site, machine = site_packages(prefix), Path(sysconfig.get_paths()["purelib"])
    unpack(prefix, bundles)
    workflow = Path(__file__).resolve().parents[2] / "workflow"
    (site / "zz_machine.pth").write_text(f"{machine}\n{workflow}\n")
    link_metadata(site, machine)
    write_scripts(prefix)
    env = ENVIRONMENT | {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
    lines = []
    # Transformer Engine else finds another cuDNN on the system's path than the one torch was built for
    if (home := machine / "nvidia/cudnn").is_dir():
        env["CUDNN_HOME"] = str(home)
        lines.append(f'export CUDNN_HOME={home} LD_LIBRARY_PATH="{home}/lib:${{LD_LIBRARY_PATH:-}}"')
    if cache := os.environ.get("TRITON_CACHE_DIR"):
        env["TRITON_CACHE_DIR"] = cache
    overlay = {"cluster": {"environment": str(prefix), "env": env}}
    (prefix / "machine.yaml").write_text(json.dumps(overlay, indent=2) + "\n")  # JSON is YAML
    lines += [f"export {name}={value}" for name, value in ENVIRONMENT.items()]
    lines.append(f'export PATH="{prefix}/bin:$PATH"')
    (prefix / "activate.sh").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
