"""Types that all request handlers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fabrictime.log.partition import Range

NODE_ID: Final = 1
"""The only node of this cluster."""

Chunk = bytes | Range
Response = Sequence[Chunk] | None
"""Response bytes after the correlation id; None if the client wants no answer."""


class Peer(NamedTuple):
    """Host and port of one end of a TCP connection."""

    host: str
    port: int
