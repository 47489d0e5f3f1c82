"""How many processes the words before a training command start, as the variables that ms-swift reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from . import slurm
from .scan import Word

WRAPPERS = (
    *("srun", "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec"),
    *("nohup", "env", "time", "exec", "command", "nice", "numactl", "stdbuf", "timeout", "sudo", "setsid"),
    *("python", "python3", "uv", "pixi", "poetry", "conda", "mamba", "micromamba"),
    *("docker", "podman", "singularity", "apptainer", "enroot", "ray", "ssh"),
)
TORCHRUN = re.compile(r"(nproc|nnodes|node_rank|master_addr|master_port)(?:_per_node)?")
ACCELERATE = {
    "machine_rank": "NODE_RANK",
    "main_process_ip": "MASTER_ADDR",
    "main_process_port": "MASTER_PORT",
}


def environment_of(
    words: Sequence[Word], env: Mapping[str, Word], job: Mapping[str, slurm.Option]
) -> dict[str, Word]:
    """What the launcher adds to an environment.

    A number that it takes from elsewhere (a file of its own, the hosts) is left open. job: the options of the
    Slurm step that the command runs in, {} outside of one.
    """
    programs = {word.text.rpartition("/")[2] for word in words}
    options = _options(words)
    found: dict[str, Word] = {}
    for word in words:
        name, equals, value = word.text.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            found[name] = replace(word, text=value)
    for name, word in options.items():
        if option := TORCHRUN.fullmatch(name):
            found["NPROC_PER_NODE" if option[1] == "nproc" else option[1].upper()] = word
    if "accelerate" in programs:
        found |= _accelerate(words[0].line, options)
    elif "deepspeed" in programs:
        found |= _deepspeed(words[0].line, options)
    elif programs & {"mpirun", "mpiexec"}:
        found["NPROC_PER_NODE"] = _open("NPROC_PER_NODE", words[0].line)
    elif job and not {"NPROC_PER_NODE", "NNODES"} & {*env, *found} and "torchrun" not in programs:
        found |= _tasks(job)
    return found


def _options(words: Sequence[Word]) -> dict[str, Word]:
    """The options of a launcher with their values; one without a value has the next word, whatever it is."""
    found = {}
    for index, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name.startswith("-") and (equals or index + 1 < len(words)):
            given = replace(word, text=value) if equals else words[index + 1]
            found[name.lstrip("-").replace("-", "_")] = given
    return found


def _open(variable: str, line: int) -> Word:
    return Word(f"${variable}", line, (f"${variable}",))


def _accelerate(line: int, options: Mapping[str, Word]) -> dict[str, Word]:
    """`--num_processes` counts those of all machines; without it a file of accelerate's own says how many."""
    found = {variable: options[name] for name, variable in ACCELERATE.items() if name in options}
    total, machines = options.get("num_processes"), options.get("num_machines")
    if machines is not None:
        found["NNODES"] = machines
    if total is None:
        found["NPROC_PER_NODE"] = _open("NPROC_PER_NODE", line)
    elif machines is None or machines.text == "1":
        found["NPROC_PER_NODE"] = total
    elif not (total.text.isdigit() and machines.text.isdigit() and int(machines.text)):
        found["NPROC_PER_NODE"] = _open("NPROC_PER_NODE", line)
    else:
        found["NPROC_PER_NODE"] = replace(total, text=str(int(total.text) // int(machines.text)))
    return found


def _deepspeed(line: int, options: Mapping[str, Word]) -> dict[str, Word]:
    """Without `--num_gpus` all GPUs of a host, without `--num_nodes` all hosts of the host file."""
    found = {}
    if nodes := options.get("num_nodes"):
        found["NNODES"] = nodes
    elif "hostfile" in options:
        found["NNODES"] = _open("NNODES", line)
    include = options.get("include")
    if include is not None and re.fullmatch(r"[\w.-]+:\d+(,\d+)*", include.text):
        found["NPROC_PER_NODE"] = replace(include, text=str(include.text.count(",") + 1))
    else:
        found["NPROC_PER_NODE"] = options.get("num_gpus") or _open("NPROC_PER_NODE", line)
    return found


def _tasks(job: Mapping[str, slurm.Option]) -> dict[str, Word]:
    """The tasks of a step as processes: where Slurm starts one for each GPU."""
    per_node, nodes = slurm.tasks_per_node_of(job), slurm.nodes_of(job) or 1
    if per_node is None or per_node == 1:
        return {}
    line = next(job[name].line for name in ("ntasks-per-node", "ntasks") if name in job)
    found = {"NPROC_PER_NODE": Word(str(per_node), line)}
    if nodes > 1:
        found["NNODES"] = Word(str(nodes), line)
    return found
