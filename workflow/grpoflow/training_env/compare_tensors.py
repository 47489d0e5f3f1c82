"""Compare two Hugging Face directories tensor by tensor.

    python -m grpoflow.training_env.compare_tensors OURS THEIRS

Holds two tensors at a time. Exit code 1 when a tensor is missing, added, of a narrower type, or different in
any value.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors import safe_open


def where(directory: Path) -> dict[str, Path]:
    """Map each tensor to the shard that holds it."""
    names: dict[str, Path] = {}
    for shard in sorted(directory.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as content:
            names |= dict.fromkeys(content.keys(), shard)
    return names


def load(shard: Path, name: str) -> torch.Tensor:
    with safe_open(shard, framework="pt") as content:
        tensor: torch.Tensor = content.get_tensor(name)
    return tensor


def differences(ours: Path, theirs: Path) -> list[str]:
    """Describe every tensor that is not equal in both directories."""
    a, b = where(ours), where(theirs)
    found = [f"{name}: only in {ours}" for name in sorted(a.keys() - b.keys())]
    found += [f"{name}: only in {theirs}" for name in sorted(b.keys() - a.keys())]
    for name in sorted(a.keys() & b.keys()):
        x, y = load(a[name], name), load(b[name], name)
        if x.shape != y.shape or torch.promote_types(x.dtype, y.dtype) != x.dtype:
            found.append(f"{name}: {x.dtype} {tuple(x.shape)}, not {y.dtype} {tuple(y.shape)}")
        elif not torch.equal(x, y.to(x.dtype)):  # a wider type holds every value of a narrower one
            found.append(f"{name}: largest difference {(x.float() - y.float()).abs().max().item():.3g}")
    return found


def main(argv: list[str]) -> int:
    found = differences(Path(argv[0]), Path(argv[1]))
    print("\n".join(found) or "all tensors are equal")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
