"""Writing a directory so that it is either absent or complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def complete_directory(out: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `out`; rename it to `out` at the end, in place of an older one.

    Raises FileExistsError if `out` exists and is not a directory. After an exception `out` is as it was
    before.
    """
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} exists and is not a directory")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        if out.exists():
            # rename() does not replace a directory that has files in it
            old = out.with_name(f".{out.name}.{os.getpid()}.old")
            out.rename(old)
            temporary.rename(out)
            shutil.rmtree(old)
        else:
            temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
