"""The test cluster itself (scripts/test-cluster), and the Snakemake profile `slurm` on it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_client import CONTROL, ClusterClient

pytestmark = pytest.mark.slurm

REPOSITORY = Path(__file__).resolve().parents[2]
SNAKEFILE = Path(__file__).resolve().parent / "fixtures" / "Snakefile"
SYSTEM_CONF = Path("/etc/slurm/slurm.conf")
ALL_GPUS = "0,1,2,3,4,5,6,7"


def daemon_pids(cluster: ClusterClient) -> dict[str, int]:
    """Daemon name -> PID, of those that `status` shows as running."""
    rows = [line.split() for line in cluster.control("status").stdout.splitlines()[1:]]
    return {name: int(pid) for name, pid, *_ in rows if pid != "-"}


def pids_of(command: str) -> list[int]:
    """PIDs of the processes with exactly this command line."""
    wanted = command.replace(" ", "\0") + "\0"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_text(errors="replace") == wanted:
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def is_running(pid: int) -> bool:
    """False for a zombie, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_start_again_changes_nothing(cluster: ClusterClient) -> None:
    before = daemon_pids(cluster)
    cluster.start()
    assert daemon_pids(cluster) == before
    assert set(before) == {
        *("munged", "mariadbd", "slurmdbd", "slurmctld"),
        *(f"slurmd-a800-{index}" for index in range(4)),
    }


def test_start_with_other_options_is_refused(cluster: ClusterClient) -> None:
    done = cluster.control("start", "--nodes", "2")
    assert done.returncode == 1
    assert "stop it before" in done.stderr


def test_job_sees_its_gpus(cluster: ClusterClient) -> None:
    shown = cluster.run("srun", "--mem=500", "--gpus-per-node=a800:8", "printenv", "CUDA_VISIBLE_DEVICES")
    assert shown.strip() == ALL_GPUS


def test_two_jobs_share_a_node_without_sharing_gpus(cluster: ClusterClient, tmp_path: Path) -> None:
    flags = ("--nodelist=a800-0", "--gpus-per-node=a800:4")
    script = f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/$SLURM_JOB_ID; sleep 1"
    jobs = [cluster.submit(script, *flags) for _ in range(2)]
    for job in jobs:
        cluster.wait_for(job, "COMPLETED")
    assert {(tmp_path / job).read_text().strip() for job in jobs} == {"0,1,2,3", "4,5,6,7"}


def test_nodes_have_hostnames_and_share_an_address(cluster: ClusterClient) -> None:
    names = cluster.run("srun", "-N2", "--mem=500", "hostname").split()
    assert sorted(names) == ["a800-0", "a800-1"]
    assert "NodeAddr=127.0.0.1" in cluster.run("scontrol", "show", "node", "a800-1")


def test_accounting_charges_the_account(cluster: ClusterClient) -> None:
    job = cluster.submit("true", "--account=train", "--comment=why")
    cluster.wait_for(job, "COMPLETED")
    expected = {"State": "COMPLETED", "Account": "train", "Comment": "why"}
    assert cluster.sacct(job, "State,Account,Comment") == [expected]


def test_preempted_job_is_requeued(cluster: ClusterClient) -> None:
    whole_cluster = ("-N4", "--gpus-per-node=a800:8", "--mem=500")
    low = cluster.submit('test -n "$SLURM_RESTART_COUNT" || sleep 300', "--partition=low", *whole_cluster)
    cluster.wait_for(low, "RUNNING")
    cluster.run("srun", "--partition=high", *whole_cluster, "true")
    assert cluster.squeue(low, "%T %r") == "PENDING BeginTime"
    cluster.wait_for(low, "COMPLETED")
    assert [record["State"] for record in cluster.sacct(low)] == ["PREEMPTED", "COMPLETED"]


def test_killed_node_fails_and_requeues_its_job(cluster: ClusterClient) -> None:
    job = cluster.submit('test -n "$SLURM_RESTART_COUNT" || { setsid sleep 86391 & sleep 300; }')
    cluster.wait_for(job, "RUNNING")
    node = cluster.squeue(job, "%N")
    cluster.kill_node(int(node.removeprefix("a800-")))
    assert not any(map(is_running, pids_of("sleep 86391")))
    assert cluster.control("status").returncode == 3
    cluster.wait_for(job, "COMPLETED")
    first, second = cluster.sacct(job)
    assert (first["State"], first["NodeList"]) == ("NODE_FAIL", node)
    assert second["State"] == "COMPLETED"
    assert second["NodeList"] != node
    cluster.start_node(int(node.removeprefix("a800-")))
    assert cluster.control("status").returncode == 0


def test_profile_runs_each_rule_as_one_job(cluster: ClusterClient, tmp_path: Path) -> None:
    """`snakemake --profile slurm`, without partition and account, as in a fresh clone."""
    (tmp_path / "slurm").symlink_to(REPOSITORY / "slurm")
    # A job takes 5 s, 10 on a busy machine; the query after the first one comes 10 s later than this.
    waits = ("--slurm-init-seconds-before-status-checks", "12", "--latency-wait", "5")
    log = cluster.snakemake(tmp_path, "--snakefile", SNAKEFILE, *waits, seconds=90)
    assert log.returncode == 0, log.stdout
    assert ALL_GPUS in (tmp_path / "report.txt").read_text()

    run_id = re.search(r"SLURM run ID: (\S+)", log.stdout)
    assert run_id is not None
    assert run_id[1].startswith("grpoflow_")
    form = "%k|%T|%a|%P|%m|%c|%r"
    rows = cluster.run("squeue", "-h", "--states=all", f"--name={run_id[1]}", f"--format={form}").splitlines()
    assert sorted(row.rpartition("|")[0] for row in rows) == [
        "rule_prepare_wildcards_a|COMPLETED|train|gpu|700M|1",
        "rule_report|COMPLETED|train|gpu|4000M|1",
        "rule_train|COMPLETED|train|gpu|4000M|8",
    ]
    logs = {
        path.relative_to(tmp_path / "logs" / "slurm").parts[0]
        for path in tmp_path.glob("logs/slurm/**/*.log")
    }
    assert logs == {"rule_prepare", "rule_report", "rule_train"}


@pytest.fixture
def stopped(session_cluster: ClusterClient) -> Iterator[ClusterClient]:
    """The cluster, stopped before and after the test; a later test's `cluster` starts it again."""
    session_cluster.stop()
    yield session_cluster
    session_cluster.stop()


def test_stop_leaves_no_process_and_no_link(cluster: ClusterClient) -> None:
    # In a session of its own and deaf to SIGTERM, the process survives the end of its job.
    cluster.submit("setsid sh -c \"trap '' TERM; exec sleep 86392\" & wait")
    deadline = time.monotonic() + 30
    while not pids_of("sleep 86392"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = [*daemon_pids(cluster).values(), *pids_of("sleep 86392")]
    assert all(map(is_running, pids))
    cluster.stop()
    assert not [pid for pid in pids if is_running(pid)]
    assert not SYSTEM_CONF.is_symlink()
    assert cluster.control("status").returncode == 3
    cluster.stop()


def test_two_starts_at_once(stopped: ClusterClient) -> None:
    starts = [
        subprocess.Popen([CONTROL, "start"], env=stopped.env, stdout=subprocess.DEVNULL) for _ in range(2)
    ]
    assert [start.wait(timeout=60) for start in starts] == [0, 0]
    assert stopped.control("status").returncode == 0
    assert len(pids_of(f"slurmctld -f {stopped.root}/etc/slurm.conf")) == 1


def test_real_slurm_conf_is_not_touched(stopped: ClusterClient) -> None:
    SYSTEM_CONF.write_text("ClusterName=theirs\n")
    try:
        done = stopped.control("start")
        assert done.returncode == 1
        assert "real file" in done.stderr
        stopped.stop()
        assert SYSTEM_CONF.read_text() == "ClusterName=theirs\n"
    finally:
        SYSTEM_CONF.unlink()


@pytest.mark.parametrize("command", ["start", "stop", "wipe"])
def test_a_directory_of_somebody_else_is_not_touched(tmp_path: Path, command: str) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    env = os.environ | {"GRPOFLOW_TEST_CLUSTER": str(tmp_path)}
    done = subprocess.run([CONTROL, command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{tmp_path} is no cluster's" in done.stderr
    assert (tmp_path / "thesis.tex").read_text() == "all of it"


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/memory", os.W_OK), reason="needs the cgroup v1 memory controller, writable"
)
def test_cgroups_end_a_job_that_takes_too_much_memory(stopped: ClusterClient) -> None:
    stopped.start("--cgroup", "--accounting", "none", "--nodes", "1")
    greedy = stopped.submit("python3 -c 'bytes(range(256)) * (1 << 20)'", "--mem=50")
    assert stopped.wait_for(greedy, "OUT_OF_MEMORY", "FAILED", "COMPLETED") == "OUT_OF_MEMORY"
