"""What a node of the cluster says about its software: probe.json of the stage probe_nodes.

Nothing in it is required: a field that is not there, or that says nothing, is not known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpoflow.facts.versions import parse_release

PACKAGE_OF_FIELD = {
    "torch": "torch",
    "triton": "triton",
    "transformers": "transformers",
    "vllm": "vllm",
    "transformer_engine": "transformer-engine",
    "cublas": "nvidia-cublas",
    "fla": "fla-core",
    "flashinfer": "flashinfer-python",
    "tilelang": "tilelang",
    "msgspec": "msgspec",
}
"""Names of distributions by the fields of a node."""

PLACES = ("shared/probe*/*/probe.json", "shared/probe*/probe.json", "*/probe.json", "probe.json")


@dataclass(frozen=True)
class Probed:
    """Software of a node.

    Attributes:
        packages: Versions by name of the distribution.
        missing: Distributions that the node looked for and does not have.
        cudnn: Every release of cuDNN that a program finds there.
        compute_capability: That of its GPUs.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    cudnn: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None


def read_probe(results: Path, environment: str) -> Probed:
    """The newest probe of the environment below `results`; an empty one where there is none."""
    files = {path for place in PLACES for path in results.glob(place)}
    for path in sorted(files, key=lambda path: -path.stat().st_mtime):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get("environment") in (None, environment):
            return parse_probe(content)
    return Probed()


def parse_probe(content: Mapping[str, Any]) -> Probed:
    """Read the fields of a probe, or of its first node where it has a list of nodes."""
    nodes = content.get("nodes")
    inner = nodes[0] if isinstance(nodes, list) and nodes else content.get("versions")
    facts = {**content, **inner} if isinstance(inner, dict) else content
    packages = {
        package: version
        for name, package in PACKAGE_OF_FIELD.items()
        if (version := _version(facts.get(name))) is not None
    }
    missing = frozenset(
        package
        for name, package in PACKAGE_OF_FIELD.items()
        if name in facts and facts[name] in (None, False, "")
    )
    found = facts.get("cudnn")
    listed = found if isinstance(found, list) else [found]
    versions = [version for item in listed if (version := _version(item)) is not None]
    cudnn = tuple({parse_release(version)[:3]: version for version in versions}.values())
    return Probed(packages, missing, cudnn, _capability(facts.get("compute_capability")))


def _version(value: Any) -> str | None:
    """A version as text; the numbers of cuDNN and cuBLAS (91900, 130100) have two digits per part."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int) and value >= 10000:
        return f"{value // 10000}.{value // 100 % 100}.{value % 100}"
    found = re.match(r"v?(\d+(\.\w+)+.*)", str(value).strip())
    return found[1] if found else None


def _capability(value: Any) -> tuple[int, int] | None:
    numbers: Iterable[Any] = value if isinstance(value, list) else re.findall(r"\d+", str(value or ""))
    parts = [int(number) for number in numbers]
    if len(parts) == 1 and parts[0] >= 10:  # sm_90
        return parts[0] // 10, parts[0] % 10
    return (parts[0], parts[1]) if len(parts) == 2 else None
