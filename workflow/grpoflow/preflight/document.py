"""The list of checks, generated from the registry (config/CHECKS.md)."""

from __future__ import annotations

from . import run  # noqa: F401 - registers the checks
from .rules import CHECKS

HEAD = """\
# Checks

Every check of `grpoflow preflight`, by the id that its report shows. `snakemake` runs those about the
configuration whenever it reads the workflow, and stops where one refuses; the stage `preflight` adds
those about the checkpoint; `grpoflow preflight --checkpoint --data` runs all of them.

A check that does not apply is switched off with its id and a reason, which the plan shows:

    preflight:
      suppress:
        run_can_be_resumed: a trial of ten minutes
"""
TITLES = {
    "arguments": "Arguments that are passed through",
    "batch": "Batch",
    "checkpoint": "Starting checkpoint (`--checkpoint`)",
    "data": "Data (`--data`)",
    "layout": "Layout and placement",
    "memory": "Memory",
    "model": "Model (`config.json`)",
    "outcome": "Benchmarks and exported adapters",
    "resume": "Checkpoints and resuming",
    "rewards": "Reward functions (`--data`)",
    "rollout": "Rollout and GPUs",
    "stack": "Packages that do not work together",
    "suppress": "Switched-off checks",
    "versions": "Releases",
}


def checks_reference() -> str:
    """Every rule by topic: id, what it protects from, evidence."""
    parts = [HEAD]
    for topic, title in TITLES.items():
        parts.append(f"## {title}\n\n| id | protects from | evidence |\n|---|---|---|")
        for check in CHECKS:
            if check.find.__module__.rpartition(".")[2] == topic:
                parts += [
                    f"| `{rule.id}` | {_cell(rule.protects)} | {_cell(rule.evidence)} |"
                    for rule in check.rules
                ]
        parts.append("")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
