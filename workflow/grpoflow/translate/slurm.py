"""`#SBATCH` headers: what they ask for, and where grpoflow keeps it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .scan import Word

SHORT = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "N": "nodes", "a": "array",
    "c": "cpus-per-task", "d": "dependency", "e": "error", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option of `sbatch`, by its long name without dashes. value is "" for a switch."""

    name: str
    value: str
    line: int
    written: str

    @property
    def line_text(self) -> str:
        """The option as a line of a batch script."""
        separator = "=" if "--" in self.written else " "
        return f"{self.written}{separator}{self.value}" if self.value else self.written


def read_header(comments: Mapping[int, str]) -> Iterator[Option]:
    """The options of the `#SBATCH` lines among these comments (line number -> text)."""
    for line, text in comments.items():
        yield from _options(text.removeprefix("#SBATCH").partition(" #")[0].split(), line, "#SBATCH ")


def _options(words: list[str], line: int, before: str) -> Iterator[Option]:
    while words:
        written, equals, value = words.pop(0).partition("=")
        if not written.startswith("--") and len(written) > 2:  # -N4
            written, equals, value = written[:2], "=", written[2:] + equals + value
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        name = written.lstrip("-")
        yield Option(SHORT.get(name, name), value.strip("'\""), line, f"{before}{written}")


GPUS = ("gpus-per-node", "gres", "gpus")
TASKS = ("ntasks", "ntasks-per-node")


def step_of(job: Mapping[str, Option], words: Sequence[Word]) -> dict[str, Option]:
    """The options of the step that an `srun` starts: those of the job, unless it has its own."""
    at = next(index for index, word in enumerate(words) if word.text.rpartition("/")[2] == "srun")
    own = {
        option.name: option
        for option in _options([word.text for word in words[at + 1 :]], words[at].line, "srun ")
    }
    hidden = {name for group in (GPUS, TASKS) if own.keys() & {*group} for name in group}
    return {name: option for name, option in job.items() if name not in hidden} | own


def count_of(value: str) -> int | None:
    """The number in `8`, `gpu:8`, `a800:8` or `gpu:a800:8(S:0-1)`; None where there is none (`2-4`)."""
    found = re.fullmatch(r"(?:[\w.-]+:)*(\d+)(?:\(.*\))?", value)
    return int(found[1]) if found else None


def nodes_of(header: Mapping[str, Option]) -> int | None:
    """Nodes that the header asks for, if it says so exactly."""
    return count_of(header["nodes"].value) if "nodes" in header else None


def tasks_per_node_of(header: Mapping[str, Option]) -> int | None:
    """Tasks on each node, if that is said exactly."""
    if "ntasks-per-node" in header:
        return count_of(header["ntasks-per-node"].value)
    tasks, nodes = header.get("ntasks"), nodes_of(header) or 1
    count = count_of(tasks.value) if tasks is not None else None
    return count // nodes if count and count % nodes == 0 else None


def tasks_of(header: Mapping[str, Option]) -> int | None:
    """Tasks on all nodes, if that is said exactly."""
    if "ntasks" in header:
        return count_of(header["ntasks"].value)
    per_node, nodes = tasks_per_node_of(header), nodes_of(header)
    return per_node * nodes if per_node and nodes else None


def gpus_per_node_of(header: Mapping[str, Option]) -> int | None:
    """GPUs of each node that the header asks for, if it says so."""
    for name in ("gpus-per-node", "gres"):
        if name in header and (name != "gres" or header[name].value.startswith("gpu")):
            return count_of(header[name].value)
    gpus, nodes = header.get("gpus"), nodes_of(header)
    if gpus is not None and nodes and (count := count_of(gpus.value)) and count % nodes == 0:
        return count // nodes
    return None


def variables(header: Mapping[str, Option]) -> dict[str, tuple[str, int]]:
    """Variables that Slurm sets in the job as the header says: name -> (value, line)."""
    found: dict[str, tuple[str, int]] = {}
    if (nodes := nodes_of(header)) is not None:
        found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), (str(nodes), header["nodes"].line))
    if (gpus := gpus_per_node_of(header)) is not None:
        line = next(header[name].line for name in GPUS if name in header)
        found |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), (str(gpus), line))
    if (tasks := tasks_of(header)) is not None:
        line = next(header[name].line for name in TASKS if name in header)
        found |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), (str(tasks), line))
    if "gpus" in header and (total := count_of(header["gpus"].value)) is not None:
        found["SLURM_GPUS"] = (str(total), header["gpus"].line)
    for name, variable in (
        ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
        ("ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
        ("job-name", "SLURM_JOB_NAME"),
        ("partition", "SLURM_JOB_PARTITION"),
        ("account", "SLURM_JOB_ACCOUNT"),
    ):
        if name in header:
            found[variable] = (header[name].value, header[name].line)
    return found


def minutes_of(time: str) -> int | None:
    """Minutes of a Slurm time: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S, rounded up; None for anything else."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if not found:
        return None
    days, *rest = (int(part) if part else 0 for part in found.groups())
    if found[1] is None and found[4] is None:
        rest = [0, *rest[:2]]
    hours, minutes, seconds = rest
    return days * 1440 + hours * 60 + minutes + (seconds > 0)


def megabytes_of(memory: str) -> int | None:
    """MB of a Slurm memory size such as 512G; None for anything else."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", memory, re.IGNORECASE)
    if not found:
        return None
    kilobytes = int(found[1]) << 10 * "KMGT".index(found[2].upper() or "M")
    return -(-kilobytes // 1024)
