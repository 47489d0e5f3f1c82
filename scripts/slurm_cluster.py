#!/usr/bin/env python3
"""A real Slurm cluster on this machine, for tests: slurmctld, virtual 8-GPU nodes, munge, slurmdbd, MariaDB.

scripts/test-cluster start [--nodes 4] [--accounting dbd|none] [--cgroup]
scripts/test-cluster stop | wipe | status | env
scripts/test-cluster kill-node N | stop-node N | start-node N

Runs as root on Debian, without systemd, and installs the Debian packages when they are missing. Everything it
writes is in one directory, $GRPOFLOW_TEST_CLUSTER (default /tmp/grpoflow-test-cluster-<uid>), except the link
/etc/slurm/slurm.conf, which `start` makes and `stop` removes. GPUs are device files without a device: a job
gets CUDA_VISIBLE_DEVICES, but nothing to compute on. `status` exits 0 when everything is up, else 3.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import Template
from typing import TextIO

TEMPLATES = Path(__file__).resolve().parents[1] / "tests" / "cluster"
SYSTEM_CONF = Path("/etc/slurm/slurm.conf")
NODE_PREFIX = "a800-"
GPUS_PER_NODE = 8
FIRST_NODE_PORT = 17000
DATABASE_PORT = 33306
CLUSTER_NAME = "grpoflow"  # as in tests/cluster/slurm.conf
ACCOUNT = "train"
NVIDIA_MAJOR = 195
WAIT_SECONDS = 60.0
EXIT_NOT_UP = 3

BASE_PACKAGES = ["slurm-wlm", "slurmctld", "slurmd", "slurm-client", "munge"]
BASE_PROGRAMS = ["slurmctld", "slurmd", "sbatch", "munged"]
DBD_PACKAGES = ["slurmdbd", "mariadb-server"]
DBD_PROGRAMS = ["slurmdbd", "mariadbd", "mariadb-install-db"]


class ClusterError(Exception):
    """The cluster cannot do what was asked; the message says why and what to do."""


@dataclass(frozen=True)
class Options:
    """What `start` was asked for."""

    nodes: int = 4
    accounting: str = "dbd"
    cgroup: bool = False


@dataclass(frozen=True)
class Cluster:
    """One cluster: the directory with all its files, and its options."""

    root: Path
    options: Options
    started_at: float = field(default_factory=time.monotonic)

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def nodes(self) -> list[str]:
        return [f"{NODE_PREFIX}{index}" for index in range(self.options.nodes)]

    @property
    def services(self) -> list[str]:
        """The daemons beside the nodes, in start order."""
        database = ["mariadbd", "slurmdbd"] if self.options.accounting == "dbd" else []
        return ["munged", *database, "slurmctld"]

    @property
    def daemons(self) -> list[str]:
        return [*self.services, *map(slurmd_name, self.nodes)]

    @property
    def munge_socket(self) -> Path:
        return self.root / "run" / "munge.socket"

    @property
    def database_socket(self) -> Path:
        return self.root / "run" / "mariadb.socket"

    def log(self, daemon: str) -> Path:
        return self.root / "log" / f"{daemon}.log"

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started_at:6.2f}s] {text}", flush=True)


# --- processes ------------------------------------------------------------------------------------


def slurmd_name(node: str) -> str:
    return f"slurmd-{node}"


def daemon_env(cluster: Cluster) -> dict[str, str]:
    """The caller's environment without a surrounding job's variables, which would misdirect the clients."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
    sbin = "/usr/local/sbin:/usr/sbin:/sbin"
    return env | {"SLURM_CONF": str(cluster.conf), "PATH": f"{env.get('PATH', '')}:{sbin}"}


def run(cluster: Cluster, *argv: str | Path, seconds: float = WAIT_SECONDS) -> str:
    """Run a client to its end and return its output. Raises ClusterError with its messages when it fails."""
    command = [str(word) for word in argv]
    try:
        done = subprocess.run(
            command, env=daemon_env(cluster), capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(command)}: no answer in {seconds:.0f} s") from error
    if done.returncode != 0:
        raise ClusterError(
            f"{' '.join(command)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()}"
        )
    return done.stdout


def works(cluster: Cluster, *argv: str | Path) -> bool:
    """True when the client ends with 0 within 10 s."""
    try:
        run(cluster, *argv, seconds=10)
    except ClusterError:
        return False
    return True


def launch(cluster: Cluster, daemon: str, *argv: str | Path) -> subprocess.Popen[bytes]:
    """Start a daemon in a session of its own, with its output in its log.

    Never with our own output: the daemon would hold a test runner's pipe open for as long as it lives.
    """
    with cluster.log(daemon).open("ab") as log:
        return subprocess.Popen(
            [str(word) for word in argv],
            env=daemon_env(cluster),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def process_status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status; empty when the process is gone or a zombie nobody has reaped yet."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return {} if fields.get("State", "Z").startswith(("Z", "X")) else fields


def daemon_pid(cluster: Cluster, daemon: str) -> int | None:
    """The PID of a running daemon.

    A PID file left over by a crash may name another process by now, so the process's name is compared too.
    """
    try:
        pid = int((cluster.root / "run" / f"{daemon}.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return pid if process_status(pid).get("Name") == daemon.partition("-")[0] else None


def wait_until(check: Callable[[], bool], cluster: Cluster, daemon: str) -> None:
    """Poll until `check` holds. Raises ClusterError with the end of the daemon's log when it never does."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not check():
        if time.monotonic() > deadline:
            log = cluster.log(daemon)
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ClusterError(f"{daemon} is not ready after {WAIT_SECONDS:.0f} s. {log} ends with:\n{tail}")
        time.sleep(0.05)


def end_processes(pids: Sequence[int], seconds: float = 15.0) -> None:
    """SIGTERM, and SIGKILL for those that are still there after `seconds`. Returns when all are gone."""
    send(pids, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while any(map(process_status, pids)):
        if time.monotonic() > deadline:
            send(pids, signal.SIGKILL)
        time.sleep(0.05)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


@functools.cache
def has_own_hostnames() -> bool:
    """True when this machine lets us give each node its own hostname (CAP_SYS_ADMIN)."""
    return subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode == 0


def processes_of_nodes() -> dict[str, list[int]]:
    """Node name -> PIDs of all in that node's UTS namespace: slurmd, job steps, and what escaped its step.

    A job's process that called setsid survives scancel under proctrack/pgid; here it cannot hide.
    """
    by_namespace: dict[Path, list[int]] = {}
    own = Path("/proc/self/ns/uts").readlink()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            namespace = (entry / "ns" / "uts").readlink()
        except OSError:  # gone, a zombie, or another user's
            continue
        if namespace != own:
            by_namespace.setdefault(namespace, []).append(int(entry.name))
    by_node: dict[str, list[int]] = {}
    for pids in by_namespace.values():
        asked = subprocess.run(
            ["nsenter", f"--uts=/proc/{pids[0]}/ns/uts", "hostname"],
            capture_output=True,
            text=True,
            check=False,
        )
        by_node.setdefault(asked.stdout.strip(), []).extend(pids)
    return {node: pids for node, pids in by_node.items() if node.startswith(NODE_PREFIX)}


def end_orphans(cluster: Cluster) -> None:
    """SIGKILL whatever is left of nodes without slurmd."""
    for node, pids in processes_of_nodes().items():
        if daemon_pid(cluster, slurmd_name(node)) is None:
            end_processes(pids, seconds=0.0)


# --- packages and files ---------------------------------------------------------------------------


def install_packages(cluster: Cluster) -> None:
    """apt-get the missing Debian packages. Raises ClusterError when that is not possible."""
    packages, programs = BASE_PACKAGES, BASE_PROGRAMS
    if cluster.options.accounting == "dbd":
        packages, programs = packages + DBD_PACKAGES, programs + DBD_PROGRAMS
    path = daemon_env(cluster)["PATH"]
    missing = [program for program in programs if shutil.which(program, path=path) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(
            f"not found: {', '.join(missing)}; install the equivalents of {', '.join(packages)}"
        )
    cluster.say(f"not found: {', '.join(missing)}; installing {' '.join(packages)} with apt-get")
    log = cluster.log("apt-get")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    with log.open("wb") as out:
        for command in (["apt-get", "update"], install):
            done = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
            )
            if done.returncode != 0:
                raise ClusterError(f"{' '.join(command)}: exit {done.returncode}, see {log}")
    cluster.say("packages installed")


def make_gpu_files(cluster: Cluster) -> None:
    """Character devices nvidia0..7. For plain files Slurm schedules GPUs but sets no CUDA_VISIBLE_DEVICES."""
    for index in range(GPUS_PER_NODE):
        path = cluster.root / "dev" / f"nvidia{index}"
        if path.is_char_device():
            continue
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, index))
        except PermissionError as error:
            raise ClusterError(f"cannot make {path}: the container needs CAP_MKNOD") from error


def accounting_settings(cluster: Cluster) -> str:
    if cluster.options.accounting == "none":
        return "AccountingStorageType=accounting_storage/none\nJobCompType=jobcomp/none"
    return "\n".join(
        (
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            "AccountingStoragePort=16819",
            # The socket once more: without it sacctmgr looks for munge at its default place and hangs.
            f"AccountingStoragePass={cluster.munge_socket}",
            "AccountingStorageTRES=gres/gpu,gres/gpu:a800",
            # Without it sacct has no Comment, which is where the Snakemake plugin writes the rule's name.
            "AccountingStoreFlags=job_comment",
            "JobCompType=jobcomp/none",
        )
    )


def node_settings(cluster: Cluster) -> str:
    host = socket.gethostname().partition(".")[0]
    return "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={FIRST_NODE_PORT + index} Boards=1 "
        "SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=1000000 "
        f"Gres=gpu:a800:{GPUS_PER_NODE}"
        for index, node in enumerate(cluster.nodes)
    )


def tracking_settings(cluster: Cluster) -> dict[str, str]:
    """How Slurm follows and limits a job's processes. Only cgroups end it as OUT_OF_MEMORY, else FAILED."""
    if cluster.options.cgroup:
        return {
            "proctrack": "proctrack/cgroup",
            "task": "task/cgroup",
            "gather": "jobacct_gather/cgroup",
            "gather_params": "",
        }
    return {
        "proctrack": "proctrack/pgid",
        "task": "task/none",
        "gather": "jobacct_gather/linux",
        "gather_params": "JobAcctGatherParams=OverMemoryKill",
    }


def cgroup_settings(cluster: Cluster) -> str:
    if not cluster.options.cgroup:
        return "CgroupAutomount=no\n"
    memory = Path("/sys/fs/cgroup/memory")
    if not os.access(memory, os.W_OK):
        raise ClusterError(f"--cgroup needs the cgroup v1 memory controller writable at {memory}")
    return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\nConstrainSwapSpace=no\n"


def write_files(cluster: Cluster) -> None:
    """Everything the daemons read; first what says that the directory is a cluster's."""
    write_file(cluster.root / "options.json", json.dumps(asdict(cluster.options)).encode())
    for name in ("etc", "log", "state", "spool", "run", "munge", "mysql", "dev"):
        (cluster.root / name).mkdir(exist_ok=True)
    key = cluster.root / "munge" / "munge.key"
    if not key.exists():
        write_file(key, os.urandom(128), mode=0o400)
    make_gpu_files(cluster)
    etc = cluster.root / "etc"
    values = {
        "root": str(cluster.root),
        "host": socket.gethostname().partition(".")[0],
        "accounting": accounting_settings(cluster),
        "nodes": node_settings(cluster),
        **tracking_settings(cluster),
    }
    for name in ("slurm.conf", "slurmdbd.conf"):
        text = Template((TEMPLATES / name).read_text()).substitute(values)
        write_file(etc / name, text.encode(), mode=0o600 if name == "slurmdbd.conf" else 0o644)
    gpus = f"{cluster.root}/dev/nvidia[0-{GPUS_PER_NODE - 1}]"
    write_file(etc / "gres.conf", f"Name=gpu Type=a800 File={gpus}\n".encode())
    write_file(etc / "cgroup.conf", cgroup_settings(cluster).encode())


def write_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    temporary.replace(path)


def check_system_conf(cluster: Cluster) -> None:
    """Raises ClusterError when /etc/slurm/slurm.conf is not ours. A dangling link belongs to nobody."""
    if not SYSTEM_CONF.exists() or SYSTEM_CONF.resolve() == cluster.conf:
        return
    if SYSTEM_CONF.is_symlink():
        raise ClusterError(
            f"{SYSTEM_CONF} points to {SYSTEM_CONF.resolve()}. If that is another test cluster, stop it: "
            "GRPOFLOW_TEST_CLUSTER=<its directory> scripts/test-cluster stop"
        )
    raise ClusterError(
        f"{SYSTEM_CONF} is a real file: this machine belongs to a Slurm cluster, which stays untouched. "
        "Run the test cluster on another machine or in a container"
    )


def link_system_conf(cluster: Cluster) -> None:
    """Snakemake's executor inside a job drops SLURM_CONF, so that job's clients look at the default place."""
    SYSTEM_CONF.parent.mkdir(parents=True, exist_ok=True)
    temporary = SYSTEM_CONF.with_name(".slurm.conf.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(cluster.conf)
    temporary.replace(SYSTEM_CONF)


def unlink_system_conf(cluster: Cluster) -> None:
    if SYSTEM_CONF.is_symlink() and SYSTEM_CONF.readlink() == cluster.conf:
        SYSTEM_CONF.unlink()


# --- start ----------------------------------------------------------------------------------------


def start_munged(cluster: Cluster) -> None:
    """--force: munged dislikes directories below a world-writable one, such as /tmp."""
    if daemon_pid(cluster, "munged") is None:
        launch(
            cluster,
            "munged",
            "munged",
            "--force",
            f"--key-file={cluster.root}/munge/munge.key",
            f"--seed-file={cluster.root}/munge/munge.seed",
            f"--socket={cluster.munge_socket}",
            f"--pid-file={cluster.root}/run/munged.pid",
            f"--log-file={cluster.log('munged')}",
        ).wait()
    wait_until(lambda: works(cluster, "munge", "-n", "-S", cluster.munge_socket), cluster, "munged")


def sql(cluster: Cluster, statement: str) -> tuple[str | Path, ...]:
    return ("mariadb", "--no-defaults", "--user=root", f"--socket={cluster.database_socket}", "-e", statement)


def start_mariadbd(cluster: Cluster) -> None:
    """A database of its own; it may lose the last second at a crash, which saves most of its start time."""
    data = cluster.root / "mysql"
    if daemon_pid(cluster, "mariadbd") is None:
        if not (data / "installed").exists():
            # An interrupted first start leaves half a data directory, with which the server does not start.
            shutil.rmtree(data)
            data.mkdir()
            run(
                cluster,
                "mariadb-install-db",
                "--no-defaults",
                "--user=root",
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            )
            (data / "installed").touch()
        launch(
            cluster,
            "mariadbd",
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={data}",
            f"--socket={cluster.database_socket}",
            "--bind-address=127.0.0.1",
            f"--port={DATABASE_PORT}",
            "--skip-name-resolve",
            f"--pid-file={cluster.root}/run/mariadbd.pid",
            f"--log-error={cluster.log('mariadbd')}",
            "--innodb-buffer-pool-size=128M",
            "--innodb-lock-wait-timeout=900",
            "--innodb-flush-log-at-trx-commit=0",
        )
    wait_until(lambda: works(cluster, *sql(cluster, "select 1")), cluster, "mariadbd")
    run(
        cluster,
        *sql(
            cluster,
            "create database if not exists slurm_acct_db; create user if not exists 'slurm'@'127.0.0.1';"
            "grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1'",
        ),
    )


def start_slurmdbd(cluster: Cluster) -> None:
    """slurmdbd, with one account that has root as its user, so that jobs have an account to be charged to."""
    if daemon_pid(cluster, "slurmdbd") is None:
        launch(cluster, "slurmdbd", "slurmdbd").wait()
    wait_until(lambda: works(cluster, "sacctmgr", "-n", "list", "cluster"), cluster, "slurmdbd")
    listed = run(cluster, "sacctmgr", "-n", "list", "user", "root", "format=defaultaccount")
    if listed.strip() == ACCOUNT:
        return
    # What exists already is an error to sacctmgr; the last command fails unless all of them exist.
    works(cluster, "sacctmgr", "-iQ", "add", "cluster", CLUSTER_NAME)
    works(cluster, "sacctmgr", "-iQ", "add", "account", ACCOUNT, f"Cluster={CLUSTER_NAME}")
    works(cluster, "sacctmgr", "-iQ", "add", "user", "root", f"Account={ACCOUNT}")
    # slurmdbd makes an account "root" for root, which would stay the default.
    run(cluster, "sacctmgr", "-iQ", "modify", "user", "root", "set", f"DefaultAccount={ACCOUNT}")


def start_slurmctld(cluster: Cluster) -> None:
    fresh = daemon_pid(cluster, "slurmctld") is None
    if fresh:
        launch(cluster, "slurmctld", "slurmctld", "-f", cluster.conf).wait()
    wait_until(lambda: works(cluster, "scontrol", "ping"), cluster, "slurmctld")
    if fresh:
        # Jobs of a session that was killed with its cluster must not go on, nor start again now.
        run(cluster, "scancel", "--user=root")
        end_orphans(cluster)


def start_slurmd(cluster: Cluster, node: str) -> None:
    """Start one node unless it runs, with its own hostname where permitted, as on a real cluster."""
    if daemon_pid(cluster, slurmd_name(node)) is not None:
        return
    slurmd = ["slurmd", "-N", node, "-f", str(cluster.conf)]
    if has_own_hostnames():
        slurmd = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', node, *slurmd]
    launch(cluster, slurmd_name(node), *slurmd).wait()


def node_states(cluster: Cluster) -> dict[str, str]:
    """Node name -> state in Slurm's compact form; empty when slurmctld does not answer."""
    try:
        lines = run(cluster, "sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %t", seconds=10).splitlines()
    except ClusterError:
        return {}
    return dict(line.split() for line in lines)


def is_up(state: str) -> bool:
    return state in ("idle", "mix", "alloc")


def wait_for_nodes(cluster: Cluster, nodes: Sequence[str]) -> None:
    def all_up() -> bool:
        states = node_states(cluster)
        return all(is_up(states.get(node, "")) for node in nodes)

    wait_until(all_up, cluster, slurmd_name(nodes[0]))


def start(cluster: Cluster) -> None:
    """Bring up whatever is not running. Raises ClusterError when it runs with other options."""
    check_system_conf(cluster)
    running = saved_options(cluster.root)
    if running not in (None, cluster.options) and running_pids(Cluster(cluster.root, running)):
        raise ClusterError(f"runs already, with {running}; stop it before a start with {cluster.options}")
    (cluster.root / "log").mkdir(exist_ok=True)
    install_packages(cluster)
    write_files(cluster)
    link_system_conf(cluster)
    steps: dict[str, Callable[[Cluster], None]] = {
        "munged": start_munged,
        "mariadbd": start_mariadbd,
        "slurmdbd": start_slurmdbd,
        "slurmctld": start_slurmctld,
    }
    for service in cluster.services:
        steps[service](cluster)
        cluster.say(f"{service} up")
    for node in cluster.nodes:
        start_slurmd(cluster, node)
    wait_for_nodes(cluster, cluster.nodes)
    cluster.say(f"cluster up: {cluster.options.nodes} nodes, accounting {cluster.options.accounting}")


# --- stop -----------------------------------------------------------------------------------------


def running_pids(cluster: Cluster) -> list[int]:
    return [pid for daemon in cluster.daemons if (pid := daemon_pid(cluster, daemon)) is not None]


def cancel_jobs(cluster: Cluster) -> None:
    """Cancel all jobs and give them a moment to end, so that accounting has their end."""
    try:
        run(cluster, "scancel", "--user=root", seconds=10)
        deadline = time.monotonic() + 8
        while run(cluster, "squeue", "-h", seconds=10).strip() and time.monotonic() < deadline:
            time.sleep(0.1)
    except ClusterError as error:
        cluster.say(f"jobs not cancelled: {error}")


def remove_cgroups() -> None:
    """slurmd leaves its empty control groups behind (`start --cgroup`)."""
    for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{NODE_PREFIX}*"):
        for path, _, _ in os.walk(top, topdown=False):
            Path(path).rmdir()


def stop(cluster: Cluster) -> None:
    """End every process of the cluster: jobs, nodes, what jobs left behind, services in reverse order."""
    if daemon_pid(cluster, "slurmctld") is not None:
        cancel_jobs(cluster)
    slurmds = [daemon_pid(cluster, slurmd_name(node)) for node in cluster.nodes]
    end_processes([pid for pid in slurmds if pid is not None])
    end_orphans(cluster)
    for service in reversed(cluster.services):
        pid = daemon_pid(cluster, service)
        end_processes([] if pid is None else [pid])
    remove_cgroups()
    unlink_system_conf(cluster)
    cluster.say("cluster stopped")


# --- nodes ----------------------------------------------------------------------------------------


def kill_node(cluster: Cluster, node: str) -> None:
    """A node lost with all its processes. slurmctld is told, instead of finding out after SlurmdTimeout."""
    pid = daemon_pid(cluster, slurmd_name(node))
    pids = processes_of_nodes().get(node, [] if pid is None else [pid])
    while any(map(process_status, pids)):
        send(pids, signal.SIGKILL)
        time.sleep(0.02)
    run(cluster, "scontrol", "update", f"nodename={node}", "state=down", "reason=kill-node")
    cluster.say(f"{node} killed")


def stop_node(cluster: Cluster, node: str) -> None:
    """End slurmd alone: running job steps go on, as at a restart of slurmd."""
    pid = daemon_pid(cluster, slurmd_name(node))
    end_processes([] if pid is None else [pid])
    cluster.say(f"slurmd of {node} stopped")


def start_node(cluster: Cluster, node: str) -> None:
    start_slurmd(cluster, node)
    wait_for_nodes(cluster, [node])
    cluster.say(f"{node} up")


# --- command line ---------------------------------------------------------------------------------


def status(cluster: Cluster) -> int:
    """Print a table of all daemons; return 0 when everything is up, else 3."""
    states = node_states(cluster) if daemon_pid(cluster, "slurmctld") is not None else {}
    everything_up = True
    print(f"{'daemon':<16} {'pid':>8} {'rss_MiB':>8}  state")
    for daemon in cluster.daemons:
        pid = daemon_pid(cluster, daemon)
        node = daemon.partition("-")[2]
        state = "down" if pid is None else states.get(node, "unknown") if node else "up"
        everything_up &= pid is not None and (state == "up" or is_up(state))
        rss = "-" if pid is None else f"{int(process_status(pid).get('VmRSS', '0').split()[0]) / 1024:.0f}"
        print(f"{daemon:<16} {pid or '-':>8} {rss:>8}  {state}")
    return 0 if everything_up else EXIT_NOT_UP


def saved_options(root: Path) -> Options | None:
    """The options of the last `start`, or None when there was none since the last `wipe`."""
    try:
        return Options(**json.loads((root / "options.json").read_text()))
    except FileNotFoundError:
        return None


def refuse_other_directory(root: Path) -> None:
    """Raises ClusterError for a directory with files of others: `wipe` removes all that is in it."""
    if saved_options(root) is None and any(path.name != "lock" for path in root.iterdir()):
        raise ClusterError(f"{root} is no cluster's: set GRPOFLOW_TEST_CLUSTER to a new or empty directory")


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """One command at a time; waits for its turn."""
    while (lock := take_lock(root)) is None:
        pass
    with lock:
        yield


def take_lock(root: Path) -> TextIO | None:
    """The locked lock file, or None when `wipe` removed it while we waited for it."""
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = root / "lock"
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()
    except FileNotFoundError:
        pass
    return None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="test-cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    defaults = Options()
    start_parser = commands.add_parser("start", help="start whatever is not running, and wait until it is up")
    start_parser.add_argument(
        "--nodes", type=int, choices=range(1, 65), metavar="1..64", default=defaults.nodes
    )
    start_parser.add_argument("--accounting", choices=("dbd", "none"), default=defaults.accounting)
    start_parser.add_argument("--cgroup", action="store_true", help="real OUT_OF_MEMORY; needs cgroup v1")
    commands.add_parser("stop", help="cancel all jobs and end every process of the cluster")
    commands.add_parser("wipe", help="stop, and remove the directory")
    commands.add_parser("status", help="print a table; exit 0 when everything is up, else 3")
    commands.add_parser("env", help="print the exports for the Slurm clients")
    for name, text in (
        ("kill-node", "SIGKILL everything on a node and mark it down"),
        ("stop-node", "stop a node's slurmd; its jobs go on"),
        ("start-node", "start a node again"),
    ):
        commands.add_parser(name, help=text).add_argument(
            "node", type=int, metavar="N", help="0 is the first node"
        )
    return parser.parse_args()


def wipe(cluster: Cluster) -> None:
    """Stop, and remove everything; the lock last, so that nobody starts while files are being removed."""
    stop(cluster)
    for path in cluster.root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
    (cluster.root / "lock").unlink()
    with suppress(OSError):  # somebody has just made a new lock in it
        cluster.root.rmdir()


def dispatch(arguments: argparse.Namespace, root: Path) -> int:
    if arguments.command in ("env", "status"):
        cluster = Cluster(root, saved_options(root) or Options())
        if arguments.command == "status":
            return status(cluster)
        print(f"export SLURM_CONF={cluster.conf}")
        return 0
    with locked(root):
        refuse_other_directory(root)
        if arguments.command == "start":
            start(Cluster(root, Options(arguments.nodes, arguments.accounting, arguments.cgroup)))
            return 0
        cluster = Cluster(root, saved_options(root) or Options())
        if arguments.command in ("stop", "wipe"):
            {"stop": stop, "wipe": wipe}[arguments.command](cluster)
            return 0
        if arguments.node not in range(cluster.options.nodes):
            raise ClusterError(f"no node {arguments.node}: there are nodes 0 to {cluster.options.nodes - 1}")
        action = {"kill-node": kill_node, "stop-node": stop_node, "start-node": start_node}[arguments.command]
        action(cluster, cluster.nodes[arguments.node])
    return 0


def main() -> int:
    arguments = parse_arguments()
    root = Path(
        os.environ.get("GRPOFLOW_TEST_CLUSTER") or f"/tmp/grpoflow-test-cluster-{os.getuid()}"
    ).resolve()
    try:
        if os.geteuid() != 0:
            raise ClusterError(
                "needs root: it installs packages, makes device files and links /etc/slurm/slurm.conf"
            )
        return dispatch(arguments, root)
    except ClusterError as error:
        print(f"test-cluster: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
