"""Making the shared libraries of CUDA wheels small: code for other GPUs goes.

A fatbin section holds one entry per architecture (PTX or SASS). The payload of an unwanted entry is
overwritten with zeros: headers and offsets stay, so the CUDA runtime is content, and
zeros compress to nothing.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

FATBIN_MAGIC = 0xBA55ED50
SASS, SM_90 = 2, 90

Keep = Callable[[int, int, bytes], bool]
"""Whether to keep an entry: its kind (1 PTX, 2 SASS), its architecture, its payload."""


def sections(image: bytes) -> dict[str, tuple[int, int]]:
    """Offset and size of each section of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, table + i * entry) for i in range(count)]
    names = headers[names_index][4]
    return {image[names + h[0] : image.index(b"\0", names + h[0])].decode(): (h[4], h[5]) for h in headers}


def is_sm90(kind: int, arch: int, _: bytes) -> bool:
    return kind == SASS and arch == SM_90


def prune(path: Path, keep: Keep = is_sm90) -> int:
    """Zero every fatbin entry that `keep` refuses; returns the bytes that were zeroed."""
    image = bytearray(path.read_bytes())
    zeroed = 0
    offset, size = sections(bytes(image)).get(".nv_fatbin", (0, 0))
    position, end = offset, offset + size
    while position < end - 16:
        if struct.unpack_from("<I", image, position)[0] != FATBIN_MAGIC:
            position += 8
            continue
        header, length = struct.unpack_from("<HQ", image, position + 6)
        entry = position + header
        position = entry + length
        while entry < position:
            kind, _, entry_header = struct.unpack_from("<HHI", image, entry)
            (payload,) = struct.unpack_from("<Q", image, entry + 8)
            (arch,) = struct.unpack_from("<I", image, entry + 0x1C)
            start = entry + entry_header
            if not keep(kind, arch, bytes(image[start : start + payload])):
                image[start : start + payload] = bytes(payload)
                zeroed += payload
            entry = start + payload
    path.write_bytes(image)
    strip(path)
    return zeroed


def strip(path: Path) -> None:
    subprocess.run(["strip", "--strip-unneeded", str(path)], check=False, stderr=subprocess.DEVNULL)
