"""The README shows what is there."""

from __future__ import annotations

from pathlib import Path

from workspace import ROOT, make_workspace


def readme_block(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return [part.partition("\n```")[0] for part in text.split(f"```{language}\n")[1:]]


def test_the_dag_is_the_generated_one(tmp_path: Path) -> None:
    shown = make_workspace(tmp_path).snakemake("--rulegraph", "mermaid-js", "--forceall").stdout
    (block,) = readme_block("mermaid")
    # Snakemake prints nodes and edges in an order that differs from run to run
    assert sorted(block.split("\n")[:3]) == sorted(shown.strip().split("\n")[:3])
    assert edges(block) == edges(shown)


def edges(graph: str) -> set[tuple[str, str]]:
    lines = [line.strip() for line in graph.split("\n")]
    names = {
        line.partition("[")[0]: line.partition("[")[2].rstrip("]") for line in lines if line.endswith("]")
    }
    pairs = (line.split(" --> ") for line in lines if " --> " in line)
    return {(names[a], names[b]) for a, b in pairs}


RUN_ELSEWHERE = {
    "scripts/quickstart": "tests/e2e/conftest.py, default_run",
    "scripts/test": "the gate itself",
    "scripts/test --all": "the same with more tests",
    "scripts/setup orchestrator": "scripts/test runs `scripts/setup all`",
    "grpoflow status": "tests/e2e/test_default.py, which has a run",
    "snakemake --profile slurm --configfile my.yaml": "tests/slurm/test_chain_real.py",
}


def test_every_command_is_run(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    workspace.write("my.yaml", (ROOT / "config/config.yaml").read_text())
    commands = [
        line.partition("#")[0].strip()
        for block in readme_block("bash")
        for line in block.splitlines()
        if line.partition("#")[0].strip()
    ]
    assert set(RUN_ELSEWHERE) <= set(commands)
    here = [command for command in commands if command not in RUN_ELSEWHERE]
    assert len(here) >= 4
    workspace.run("bash", "-c", "set -euo pipefail\n" + "\n".join(here))
