"""The doctor reads logs of any size: constant memory, time linear in the size."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MIB = 1 << 20
CAUSE = b"[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.58 GiB.\n"
MEASURE = """
import json, resource, sys
from pathlib import Path
from grpoflow.doctor import diagnose
diagnose([])
before = resource.getrusage(resource.RUSAGE_SELF)
diagnosis = diagnose([Path(sys.argv[1])])
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "cause": diagnosis.first_cause and diagnosis.first_cause.id,
    "line": diagnosis.first_cause and diagnosis.first_cause.line,
    "seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    "mib": (after.ru_maxrss - before.ru_maxrss) / 1024,
}))
"""


def usual(number: int) -> bytes:
    """What fills the log of a training: progress bars, metrics, requests."""
    bar = b"\rTrain:  17%%|x         | %d/9999 [00:26<01:51, 11.15s/it]" % number
    metrics = b"{'loss': '5.5e-05', 'reward': '0.29', 'grad_norm': '0.17', 'iteration': '%d/9999'}\n" % number
    return bar * 6 + metrics + b'INFO:     10.0.0.2:566 - "POST /infer/ HTTP/1.1" 200 OK\n' * 4


def noisy(number: int) -> bytes:
    """Every line has a text that the doctor knows."""
    clipped = b"max_model_len(9192) - num_tokens(%d) < max_tokens(9180). Setting max_tokens: 77\n" % number
    failed = b'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: %d\n' % number
    return clipped + failed + b"a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0\n"


def endless(number: int) -> bytes:
    """Lines of 3 MiB."""
    return (b"%d " % number) * (3 * MIB // 8) + b"\n"


def log_of(path: Path, size: int, content: Callable[[int], bytes]) -> tuple[Path, int]:
    """Write a log of about `size` bytes that ends in a cause; return it and the line of the cause."""
    lines = written = number = 0
    with path.open("wb") as log:
        while written < size:
            piece = b"".join(content(number + i) for i in range(1 if content is endless else 500))
            written += log.write(piece)
            lines += piece.count(b"\n")
            number += 500
        log.write(CAUSE)
    return path, lines + 1


def measure(path: Path) -> dict[str, float | str | None]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, check=True, text=True
    )
    value: dict[str, float | str | None] = json.loads(done.stdout)
    return value


@pytest.mark.parametrize("content", [usual, noisy, endless])
def test_memory_is_constant(content: Callable[[int], bytes], tmp_path: Path) -> None:
    size = 8 if content is noisy else 50
    path, line = log_of(tmp_path / "train.log", size * MIB, content)
    result = measure(path)
    if content is not noisy:
        assert (result["cause"], result["line"]) == ("F037-cuda-out-of-memory", line)
    assert float(result["mib"] or 0) < 24


def test_time_is_linear(tmp_path: Path) -> None:
    """CPU seconds per MiB of a log five times as long; the better of two runs: the machine may be shared."""
    small, _ = log_of(tmp_path / "small.log", 10 * MIB, usual)
    large, _ = log_of(tmp_path / "large.log", 50 * MIB, usual)
    per_mib = {
        size: min(float(measure(path)["seconds"] or 0) for _ in range(2)) / size
        for path, size in ((small, 10), (large, 50))
    }
    assert per_mib[50] < 1.6 * per_mib[10]
    assert per_mib[50] < 0.2
