"""Every known text of the doctor is found in its sample, explained, and not hidden by another one."""

import re
from pathlib import Path

import pytest
from grpoflow.doctor import diagnose
from grpoflow.doctor.findings import KINDS
from grpoflow.doctor.patterns import Pattern, patterns, triggers
from grpoflow.doctor.rules import rules

BEFORE = "[INFO:swift] The training of Epoch 0 starts...\n"
AFTER = "Train:   2%|x         | 5/200 [00:11<06:07,  1.88s/it]\n"


def in_a_log(known: Pattern) -> str:
    if not known.traceback_only or known.sample.startswith("Traceback"):
        return BEFORE + known.sample + "\n" + AFTER
    return f'{BEFORE}Traceback (most recent call last):\n  File "a.py", line 1, in f\n{known.sample}\n{AFTER}'


@pytest.mark.parametrize("known", patterns(), ids=lambda known: known.id)
def test_the_sample_is_found_and_explained(known: Pattern, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(in_a_log(known))
    diagnosis = diagnose([log])
    assert [finding.id for finding in diagnosis.findings] == [known.id]
    (finding,) = diagnosis.findings
    assert finding.kind == ("cause" if known.sample.startswith("Traceback") else known.kind)
    assert (diagnosis.first_cause is finding) == (finding.kind == "cause")
    assert finding.line == in_a_log(known).splitlines().index(known.sample.splitlines()[-1]) + 1
    assert finding.why and finding.fix and finding.evidence
    assert not re.search(r"\{\w+\}", finding.why + finding.fix)


@pytest.mark.parametrize("known", patterns(), ids=lambda known: known.id)
def test_a_line_without_the_text_is_not_found(known: Pattern, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    text = known.sample
    for literal in known.literals:
        text = text.replace(literal.decode(), "something else")
    log.write_text(text + "\n")
    assert known.id not in [finding.id for finding in diagnose([log]).findings]


def test_names_are_unique_and_kinds_are_legal() -> None:
    names = [known.id for known in patterns()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(rules())
    assert {known.kind for known in patterns()} | {rule["kind"] for rule in rules().values()} <= set(KINDS)
    assert {known.role for known in patterns()} <= {"trainer", "rollout", "slurm", "snakemake"}


def test_blocks_are_searched_for_few_texts() -> None:
    """Each costs about 0.3 ms per MiB of log: fifty are 2 GB in half a minute."""
    assert len(triggers()) <= 50
    for known in patterns():
        assert any(trigger in known.sample.encode() for trigger in triggers()), known.id


# The command lines and argument dumps of a run contain option names that error messages contain too.
HARMLESS = (
    "run sh: `python swift/cli/rollout.py --vllm_limit_mm_per_prompt x --limit-mm-per-prompt image=4`",
    "[INFO:swift] args: RLHFArguments(cached_dataset=[], max_length=4096, vllm_max_model_len=9192, ...)",
    "{'loss': '0', 'grad_norm': '0.09', 'reward': '0.26', 'completions/mean_length': '8', 'token_acc': '0'}",
    "{'loss': 3.61, 'grad_norm': 2.62, 'token_acc': 0.0, 'epoch': 0.02}",
    "a800-0:12:13 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
    "a800-0:12:13 [0] NCCL WARN Call to bind failed : Address already in use",
    "[transformers] `torch_dtype` is deprecated! Use `dtype` instead!",
    "2026-11-30 12:00:00,123 - modelscope - WARNING - ConnectionError: HTTPSConnection: Max retries exceeded",
    "usage: tool [-h]: error: argument --a: --a and --b are mutually exclusive.",
    "Wow!!!!!!!!!!!!",
    "UserWarning: Transformer Engine and Apex are not installed. Falling back to Torch optimizers.",
    "[INFO:swift] Setting max_model_len: 256",
)


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_lines_are_no_finding(line: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(line + "\n")
    assert diagnose([log]).findings == ()
