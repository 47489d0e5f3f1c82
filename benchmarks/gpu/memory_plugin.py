"""A plugin of ms-swift (`--external_plugins`) that samples the CUDA allocator of its process.

Every 0.2 s: allocated and reserved bytes, now and at most, into the file that MEMORY_SAMPLES names (one per
rank).
"""

import json
import os
import threading
import time

import torch

SECONDS = 0.2


def sample(path: str) -> None:
    with open(path, "a") as out:  # noqa: PTH123
        while True:
            time.sleep(SECONDS)
            if torch.cuda.is_initialized():
                stats = torch.cuda.memory_stats()
                names = ("allocated_bytes", "reserved_bytes")
                row = {n: stats.get(f"{n}.all.current", 0) for n in names}
                row |= {f"max_{n}": stats.get(f"{n}.all.peak", 0) for n in names}
                out.write(json.dumps({"time": time.time(), **row}) + "\n")
                out.flush()


if "MEMORY_SAMPLES" in os.environ and "LOCAL_RANK" in os.environ:
    file = f"{os.environ['MEMORY_SAMPLES']}.{os.environ['LOCAL_RANK']}"
    threading.Thread(target=sample, args=(file,), daemon=True).start()
