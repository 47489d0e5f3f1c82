"""GPU memory of every process, sampled: `python sample_memory.py OUT.csv [SECONDS]`, until it is killed.

Columns: time, GPU, process id, MiB as the driver counts them (CUDA context included).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pynvml


def main(out: Path, seconds: float) -> None:
    pynvml.nvmlInit()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    with out.open("w") as csv:
        while True:
            now = time.time()
            for index, gpu in enumerate(gpus):
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                    csv.write(f"{now:.1f},{index},{process.pid},{(process.usedGpuMemory or 0) >> 20}\n")
                csv.write(f"{now:.1f},{index},0,{pynvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20}\n")
            csv.flush()
            time.sleep(seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
