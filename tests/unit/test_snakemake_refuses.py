"""`snakemake -n` on a refused configuration prints the report of preflight, and no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNAKEMAKE = Path(sys.executable).with_name("snakemake")


def dry_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SNAKEMAKE, "-n", "--nolock", "--quiet", "all", "--default-resources", "launcher=local", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # with -n Snakemake logs to standard output
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("trainer={global_batch_size: 60}", "rollout_prompts_per_dp_divisible_by_micro_batch"),
        ("trainer={global_batch_seiz: 64}", "did you mean 'global_batch_size'?"),
    ],
)
def test_refused_without_traceback(given: str, words: str) -> None:
    done = dry_run("--config", given)
    assert done.returncode != 0
    assert words in done.stdout
    assert "WorkflowError" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_configuration_of_ones_own_replaces_the_default(tmp_path: Path) -> None:
    """Nothing of the demo, such as its SFT stage, may slip into it."""
    own = tmp_path / "own.yaml"
    own.write_text("model: {path: checkpoints/x}\n")
    done = dry_run("--configfile", str(own))
    assert done.returncode != 0
    assert "data = null" in done.stdout
    assert "trainer = null" in done.stdout


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """Snakemake itself keeps the last one."""
    own = tmp_path / "own.yaml"
    own.write_text("model: {path: a}\nmodel: {path: b}\n")
    done = dry_run("--configfile", str(own))
    assert "model = " in done.stdout
    assert "given in lines 1 and 2" in done.stdout
    assert "Traceback" not in done.stdout
