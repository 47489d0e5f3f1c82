"""The lock files: complete, hashed, without an address; and what scripts/setup relies on in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from grpoflow.facts.gates import package_bounds
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

REPO = Path(__file__).parents[2]
LOCKS = {name: REPO / "envs" / name / "requirements.txt" for name in ("orchestrator", "cpu", "gpu")}


def entries(lock: Path) -> dict[str, tuple[str, list[str]]]:
    """Name -> (version, hashes); raises ValueError for a line that is no pinned and hashed requirement."""
    text = re.sub(r"\s*\\\n\s*", " ", re.sub(r"(?m)^#.*\n", "", lock.read_text()))
    found = {}
    for line in filter(None, text.splitlines()):
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^ ;]+)((?: --hash=sha256:[0-9a-f]{64})+)", line.strip())
        if match is None:
            raise ValueError(f"{lock.name}: not a pinned and hashed requirement: {line[:80]}")
        found[canonicalize_name(match[1])] = (match[2], match[3].split())
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_is_pinned_and_hashed(name: str) -> None:
    assert len(entries(LOCKS[name])) > 50


@pytest.mark.parametrize("name", LOCKS)
def test_no_address_and_no_path(name: str) -> None:
    text = LOCKS[name].read_text()
    assert not re.search(
        r"https?:|file:|(^|\s)-|index-url|find-links| @ |/opt|/home|/tmp", text.replace("--hash=", "")
    )


def test_orchestrator_lock_satisfies_pyproject() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["dev"],
        *project["build-system"]["requires"],
    ]
    locked = entries(LOCKS["orchestrator"])
    for requirement in map(Requirement, wanted):
        version, _ = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} but {version} is locked"


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_lock_has_the_direct_requirements(name: str) -> None:
    locked = entries(LOCKS[name])
    for line in (REPO / f"envs/{name}/requirements.in").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            version, _ = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), line


def test_cpu_lock_takes_the_cpu_build_of_torch_and_nothing_for_cuda() -> None:
    locked = entries(LOCKS["cpu"])
    version, hashes = locked["torch"]
    assert Version(version).local == "cpu"
    assert len(hashes) == 1  # the one file that scripts/setup accepts
    assert not [name for name in locked if name.startswith(("nvidia", "cuda", "torchaudio", "torchcodec"))]


def test_gpu_lock_has_the_recommended_versions() -> None:
    locked = entries(LOCKS["gpu"]) | entries(REPO / "envs/gpu/source.txt")
    recommended = {row.package: row.recommended for row in package_bounds("4.6.0") if row.recommended}
    del recommended["python"]
    assert {name: locked[name][0] for name in recommended} == recommended


def test_gpu_lock_fits_what_ms_swift_allows() -> None:
    locked = entries(LOCKS["gpu"])
    for row in package_bounds("4.6.0"):
        for bounds in filter(None, (row.requires, row.qwen3_5)):
            if row.package in locked:
                assert SpecifierSet(bounds).contains(locked[row.package][0]), row


def test_source_packages_can_be_built_without_fetching() -> None:
    # scripts/setup installs the setuptools of the lock first and builds without isolation
    for name in ("orchestrator", "cpu"):
        assert "setuptools" in entries(LOCKS[name])


def test_what_builds_the_gpu_environment_is_not_changed_by_it() -> None:
    locked = entries(LOCKS["gpu"])
    for name, entry in entries(REPO / "envs/gpu/build.txt").items():
        assert locked.get(name, entry) == entry
