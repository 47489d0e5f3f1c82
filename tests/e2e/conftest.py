"""Runs of the real stack on the CPU, each made once and looked at by many tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import Workspace, make_workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "standin"))


@pytest.fixture(scope="session")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workspace, str]]:
    """The main job of the README; yields its workspace and what it printed."""
    workspace = make_workspace(tmp_path_factory.mktemp("default"))
    done = workspace.run("scripts/quickstart")
    yield workspace, done.stdout + done.stderr
