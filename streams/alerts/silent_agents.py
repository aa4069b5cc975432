"""Finds probers that do not answer while the kernel of their host does: the agent stopped.

Peers probe the host of a silent prober (`LinkEvent.hosts`). A prober counts as silent only once its own
events have stopped too, because a single peer may see only one dead path.
"""

from __future__ import annotations

from typing import Final

from schemas.records import LinkEvent

SILENT_S: Final = 2
"""Time without an event after which a prober is silent, s; a prober sends one event per second."""
ANSWERED_S: Final = 3
"""Time for which an answer shows that a host is alive, s: its peers probe it each second."""


class SilentAgents:
    """The silent probers of one shard, by whole seconds of append time."""

    def __init__(self) -> None:
        self._reported_s: dict[str, int] = {}
        """NIC to the second of its newest event."""
        self._probed_s: dict[str, int] = {}
        self._answered_s: dict[str, int] = {}
        """Maps NIC to the second in which its host was last probed, and to that in which it last answered."""

    def ingest(self, event: LinkEvent, second: int) -> None:
        """Take one event, appended to the log in `second`."""
        self._reported_s[event["nic"]] = max(second, self._reported_s.get(event["nic"], second))
        for host in event["hosts"]:
            self._probed_s[host["peer"]] = second
            if host["answers"]:
                self._answered_s[host["peer"]] = second

    def at(self, second: int) -> dict[str, int]:
        """Return, by prober silent at the end of `second`, the second of its last event.

        A prober stays silent until it reports, or until its host no longer answers either. A host that peers
        no longer probe keeps its last state, answering or silent.
        """
        silent_since_s: dict[str, int] = {}
        for nic, answered_s in list(self._answered_s.items()):
            reported_s = self._reported_s.get(nic, answered_s - SILENT_S)
            if reported_s > answered_s or self._probed_s[nic] - answered_s >= ANSWERED_S:
                del self._answered_s[nic]
            elif second - reported_s >= SILENT_S:
                silent_since_s[nic] = reported_s
        return silent_since_s
