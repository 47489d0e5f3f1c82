"""The doctor takes no printed prompt or completion for an error."""

from pathlib import Path

import pytest
from grpoflow.doctor import diagnose

MESSAGE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.58 GiB."


@pytest.mark.parametrize(
    "line",
    [
        "completion: CUDA out of memory. Error",
        f"completion: {MESSAGE}",
        f"{{'messages': [{{'role': 'user', 'content': 'Why {MESSAGE}'}}]}}",
        f'{{"prompt": "{MESSAGE}", "reward": 0.5}}',
        "[INFO:swift] prompt: Why RuntimeError: CUDA error: an illegal memory access was encountered?",
        f"[INFO:swift] [INPUT] <|im_start|>user {MESSAGE}<|im_end|>",
        f"│ Why {MESSAGE} │ 0.5 │",
        "You got RuntimeError: CUDA error: an illegal memory access was encountered, so look at the indices.",
        "No space left on device is what df would say.",
        "Train:   1%|x   | 1/99 [00:11<06:07,  1.88s/it]completion: Segmentation fault (core dumped)",
        "{'content': 'slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-30 DUE TO TIME LIMIT ***'}",
        "{'content': 'Traceback (most recent call last):\\n File ...'}\nValueError: said a completion",
    ],
)
def test_quoted_errors_are_no_finding(line: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"starting\n{line}\n")
    assert diagnose([log]).findings == ()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (MESSAGE, "F037-cuda-out-of-memory"),
        (f" 3: [rank3]: {MESSAGE}", "F037-cuda-out-of-memory"),
        (f"[ERROR:swift] the step failed: {MESSAGE}", "F037-cuda-out-of-memory"),
        (f"Train:   1%|x   | 1/99 [00:11<06:07,  1.88s/it]{MESSAGE}", "F037-cuda-out-of-memory"),
        ("  what():  CUDA error: an illegal memory access was encountered", "F035-illegal-access"),
        (
            "[rank0]:[E1130 12:00:00.123456789 ProcessGroupNCCL.cpp:1896] CUDA error: an illegal"
            " memory access",
            "F035-illegal-access",
        ),
        ("cp: error writing 'a.bin': No space left on device", "F124-disk-full"),
        ("OSError: [Errno 28] No space left on device: '/data/a.bin'", "F124-disk-full"),
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address"
            " already in use",
            "F100-port-in-use",
        ),
        ("bash: line 3:  1234 Segmentation fault      (core dumped) python a.py", "F073-segmentation-fault"),
    ],
)
def test_reported_errors_are(line: str, cause: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"starting\n{line}\n")
    assert [(finding.id, finding.line) for finding in diagnose([log]).findings] == [(cause, 2)]
