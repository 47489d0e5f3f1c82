"""Time and memory of the doctor on a log of any size.

    python benchmarks/doctor.py [--mib 2048] [--directory DIR]

Writes a log like that of a training with a rollout (progress bars, metrics, requests, warnings, statistics of
vLLM) that ends in a cause, diagnoses it, and prints one JSON line. The file is deleted afterwards.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from grpoflow.doctor import diagnose

MIB = 1 << 20
CAUSE = b"[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.58 GiB.\n"


def step(number: int) -> bytes:
    """What a step writes: about 5 KiB."""
    clock = b"%02d:%02d:%02d" % (number // 3600 % 24, number // 60 % 60, number % 60)
    bars = b"".join(b"\rTrain:  17%%|x         | %d/9999 [00:26<01:51, 11.15s/it]" % number for _ in range(8))
    metrics = b"{'loss': '5.5e-05', 'reward': '0.29', 'grad_norm': '0.17', 'iteration': '%d/9999'}\n" % number
    requests = b'INFO:     10.0.0.2:56606 - "POST /update_flattened_params/ HTTP/1.1" 200 OK\n' * 30
    clipped = (
        b"[WARNING:swift] max_model_len(9192) - num_tokens(15) < max_tokens(9180). Setting max_tokens: 9177\n"
    )
    statistics = (
        b"(EngineCore_DP0 pid=71) INFO 11-30 "
        + clock
        + b" [loggers.py:248] Engine 000: Avg prompt throughput:"
        b" 812.1 tokens/s, Avg generation throughput: 2242.0 tokens/s, Running: 64 reqs\n"
    )
    return bars + metrics + requests + clipped * (number % 50 == 0) + statistics * 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=2048, help="size of the log")
    parser.add_argument("--directory", type=Path, help="where to write it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        log = Path(directory, "trainer-0.log")
        with log.open("wb") as content:
            written = number = 0
            while written < arguments.mib * MIB:
                written += content.write(step(number))
                number += 1
            content.write(CAUSE)
        before, start = time.process_time(), time.perf_counter()
        diagnosis = diagnose([log])
        wall, cpu = time.perf_counter() - start, time.process_time() - before
    first = diagnosis.first_cause
    result = {
        "mib": round(written / MIB),
        "wall_seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2),
        "mib_per_cpu_second": round(written / MIB / cpu, 1),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "first_cause": first and first.id,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
