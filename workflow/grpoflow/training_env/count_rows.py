"""Count the rows of data sets that `Dataset.save_to_disk` wrote: `count_rows RESULT.json DIRECTORY...`.

Their dataset_info.json counts the rows before `swift export` dropped any.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from datasets import load_from_disk


def main(argv: list[str]) -> int:
    result, *directories = argv
    counts = {directory: len(load_from_disk(directory)) for directory in directories}
    Path(result).write_text(json.dumps(counts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
