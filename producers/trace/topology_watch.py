"""Reloads the topology file while a service runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from schemas.topology import Topology, TopologyError, TopologySource

_log = logging.getLogger(__name__)

FILE_CHECK_S: Final = 2.0


class TopologyWatch:
    """The content of the topology file, checked every 2 s. While it is unusable, the last topology stays."""

    def __init__(self, path: Path | None) -> None:
        """Load the topology file. Raises TopologyError if it cannot be used."""
        self._source = TopologySource(path)
        self._due_s = 0.0

    @property
    def topology(self) -> Topology:
        """The last valid content of the topology file."""
        return self._source.topology

    def check(self, now_s: float) -> bool:
        """Load the topology file again if it changed; return whether the topology is new."""
        if now_s < self._due_s:
            return False
        self._due_s = now_s + FILE_CHECK_S
        try:
            return self._source.refresh()
        except TopologyError as error:
            _log.error("%s; the last valid file stays in use", error)
            return False
