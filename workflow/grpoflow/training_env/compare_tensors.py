"""Compare two Hugging Face directories tensor by tensor.

    python -m grpoflow.training_env.compare_tensors OURS THEIRS [ABSENT.json]

ABSENT.json is a list of tensors that one of them may lack. Holds two tensors at a time. Exit code 1 when
another tensor is missing, added or of another shape, or when a value of OURS is not that of THEIRS in the
type of OURS. Which types are allowed is another question (grpoflow.fidelity.account).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
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


def differences(ours: Path, theirs: Path, absent: Collection[str] = ()) -> list[str]:
    """Describe every tensor that is not equal in both directories."""
    a, b = where(ours), where(theirs)
    found = [f"{name}: only in {ours}" for name in sorted(a.keys() - b.keys() - set(absent))]
    found += [f"{name}: only in {theirs}" for name in sorted(b.keys() - a.keys() - set(absent))]
    for name in sorted(a.keys() & b.keys()):
        x, y = load(a[name], name), load(b[name], name)
        if x.shape != y.shape:
            found.append(f"{name}: shape {tuple(x.shape)}, not {tuple(y.shape)}")
        elif not torch.equal(x, y.to(x.dtype)):
            largest = (x.float() - y.float()).abs().max().item()
            found.append(f"{name}: largest difference {largest:.3g}{_order(x, y.to(x.dtype))}")
    return found


def _order(x: torch.Tensor, y: torch.Tensor) -> str:
    """Say whether two tensors hold the same slices in another order, such as experts that were swapped."""
    if x.dim() < 2:
        return ""
    moved = [index for index in range(len(x)) if not torch.equal(x[index], y[index])]
    if not all(any(torch.equal(x[index], y[other]) for other in moved) for index in moved):
        return ""
    return f" (the same slices in another order: {moved[:8]})"


def main(argv: list[str]) -> int:
    ours, theirs, *absent = (Path(argument) for argument in argv)
    names = json.loads(absent[0].read_text(encoding="utf-8")) if absent else ()
    found = differences(ours, theirs, names)
    print("\n".join(found) or "all tensors are equal")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
