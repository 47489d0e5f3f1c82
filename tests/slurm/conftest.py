"""The fixture `cluster`: a real Slurm cluster on this machine, started once for the test session."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_client import ClusterClient

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "standin"))

ROOT = Path(os.environ.get("GRPOFLOW_TEST_CLUSTER") or f"/tmp/grpoflow-test-cluster-{os.getuid()}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slurm: runs on a real Slurm cluster that the tests start on this machine"
    )


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[ClusterClient]:
    """The cluster, for one test session at a time: tests kill its nodes. Left as it was found."""
    if os.geteuid() != 0 or (shutil.which("slurmctld") is None and shutil.which("apt-get") is None):
        pytest.skip("the test cluster needs root, and Slurm installed or Debian's apt-get")
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / "session.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = ClusterClient(ROOT)
        was_up = client.control("status").returncode == 0
        try:
            client.start()
            yield client
        finally:
            if was_up:
                client.start()
            else:
                client.stop()


@pytest.fixture(scope="module")
def module_cluster(session_cluster: ClusterClient) -> ClusterClient:
    """The cluster, up when the first test of a module begins: those of another one may have stopped it."""
    ensure_up(session_cluster)
    return session_cluster


def ensure_up(cluster: ClusterClient) -> None:
    if cluster.control("status").returncode != 0:
        cluster.start()


@pytest.fixture
def cluster(session_cluster: ClusterClient) -> Iterator[ClusterClient]:
    """The cluster with all its nodes up; the jobs of the test are cancelled at its end."""
    ensure_up(session_cluster)
    yield session_cluster
    if session_cluster.control("status").returncode == 0:
        session_cluster.run("scancel", "--user=root")
