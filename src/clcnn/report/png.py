"""Images as PNG files, by the standard library alone."""

from __future__ import annotations

import struct
import zlib

from torch import Tensor

from clcnn.report.blocks import ReportError


def to_png(image: Tensor) -> bytes:
    """An image (channels, height, width) in [0,1] as a PNG of 8 bits; grey or colour."""
    channels, height, width = image.shape
    if channels not in (1, 3):
        raise ReportError(f"found an image of {channels} channels; expected 1 or 3.")
    pixels = (image.detach().cpu().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous()
    # Each line begins with the number of its filter; 0 is none.
    lines = b"".join(b"\x00" + bytes(line.flatten().tolist()) for line in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _part(b"IHDR", head)
        + _part(b"IDAT", zlib.compress(lines, 9))
        + _part(b"IEND", b"")
    )


def _part(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
