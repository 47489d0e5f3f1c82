"""`grpoflow translate SCRIPT [--to megatron|swift|config] [--format text|json]`."""

from __future__ import annotations

import sys
from pathlib import Path

from .to_command import translate_command
from .to_config import translate_to_config


def main(script: Path, to: str | None, fmt: str) -> int:
    """Print the translation of a script to standard output.

    to: "config" (also None), "megatron" or "swift". fmt: "text" (the result, then the report as comments, so
    that the whole is still YAML or bash) or "json".

    Returns:
        0; 1 if the script cannot be read, or has no command that can be translated (said on standard error).
    """
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        print(f"{script}: {error.strerror}", file=sys.stderr)
        return 1
    if to == "megatron":
        translation = translate_command(text, "megatron")
    elif to == "swift":
        translation = translate_command(text, "swift")
    else:
        translation = translate_to_config(text)
    print(translation.to_json() if fmt == "json" else translation.to_text(), end="")
    if translation.text:
        return 0
    for problem in translation.problems:
        print(f"{script}: {problem}", file=sys.stderr)
    if translation.problems:
        return 1
    what = "GRPO or SFT command (swift or megatron, rlhf or sft)"
    print(f"{script}: no {what} found", file=sys.stderr)
    return 1
