"""Unpacks request bodies in gzip, deflate, lz4 or zstd, with one compressed frame or several.

A client may send one frame per block, so all frames are unpacked, up to the end of the body. A body that
unpacks to more than the limit is refused before all of it is in memory.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Any, Final

import lz4.frame

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODINGS: Final = ("identity", "gzip", "deflate", "lz4", "zstd")
_CHUNK: Final = 1024 * 1024


class BadBody(ValueError):
    """A request body that cannot be unpacked."""


class TooLarge(BadBody):
    """A request body that unpacks to more than the limit."""


def unpack(data: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return the unpacked content of `data`. Raises BadBody for broken data or an unknown encoding, TooLarge
    for content above the limit.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return data
        case "lz4":
            return _frames(data, lz4.frame.LZ4FrameDecompressor, limit_bytes, "lz4")
        case "gzip":
            return _frames(data, lambda: zlib.decompressobj(wbits=31), limit_bytes, "gzip")
        case "deflate":
            return _frames(data, zlib.decompressobj, limit_bytes, "deflate")
        case "zstd":
            return _frames(data, zstd.ZstdDecompressor, limit_bytes, "zstd")
        case other:
            raise BadBody(f"Content-Encoding {other[:20]!r}: expected one of {', '.join(ENCODINGS)}")


def _frames(data: bytes, make: Callable[[], Any], limit: int, name: str) -> bytes:
    out = bytearray()
    rest = data
    while rest:
        frame = make()
        while True:
            try:
                piece = frame.decompress(rest, _CHUNK)
            except (RuntimeError, zlib.error, zstd.ZstdError, EOFError) as error:
                raise BadBody(f"{name}: {error}") from error
            out += piece
            if len(out) > limit:
                raise TooLarge(f"{name}: body unpacks to more than {limit} bytes")
            if frame.eof:
                rest = frame.unused_data or b""
                break
            rest = getattr(frame, "unconsumed_tail", b"")
            if not rest and (not piece or getattr(frame, "needs_input", False)):
                raise BadBody(f"{name}: body ends in mid-frame")
    return bytes(out)
