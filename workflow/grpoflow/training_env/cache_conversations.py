"""Freeze the conversations of SFT: valid rows in one form, none of which asks a held-out prompt.

    python -m grpoflow.training_env.cache_conversations REQUEST.json

The request holds `sources` (for `val` and `sft`: path), `directory` (where sft.jsonl and rejected.jsonl are
written), `final` (where they will lie) and `result`. Lengths are for `swift export` to judge.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from grpoflow.freeze import Media, Seen, freeze
from grpoflow.readers import DataError

KEYS = {"val": "data.val", "sft": "sft.dataset"}


def main(argv: list[str]) -> int:
    request = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    directory = Path(request["directory"])
    # one for both: an image in a row is known by where it is written to
    seen, media = Seen(), Media(directory / "media", Path(request["final"]) / "media")
    with tempfile.TemporaryDirectory(dir=directory) as aside:
        # Every prompt of val is held out, also one that is too long or lacks a column of the rewards: what
        # SFT learns depends on no setting of GRPO, whose own val.jsonl is another result.
        splits = {}
        for name, target in (("val", Path(aside)), ("sft", directory)):
            try:
                with (target / "rejected.jsonl").open("w", encoding="utf-8") as refused:
                    splits[name] = freeze(
                        name,
                        Path(request["sources"][name]),
                        target / f"{name}.jsonl",
                        seen,
                        refused,
                        media=media,
                        measure=None,
                        answered=name == "sft",
                    )
            except DataError as error:
                raise SystemExit(f"{KEYS[name]}: {error}") from error
    split = splits["sft"]
    print(f"sft: {split.kept} rows kept, {split.rejected.total()} rejected", flush=True)
    result = {"splits": {"sft": split.facts()}}
    Path(request["result"]).write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
