"""Keeps the newest flow reports of every host and decodes them only on request.

A thousand NICs report tens of thousands of flows a second, which are rarely viewed. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

KEPT_NS: Final = 5_000_000_000
"""Every flow is reported each second: older reports describe flows that are gone."""
MOST_BYTES: Final = 128 * 1024 * 1024
MOST_HOSTS: Final = 65_536

Decode = Callable[[bytes], Mapping[str, Any]]
Flow = Mapping[str, Any]


class FlowCache:
    """Messages by host; `decode` makes a FlowReports record of one, or raises ValueError."""

    def __init__(self, decode: Decode) -> None:
        self.version = 0
        self.unreadable = 0
        self.newest_ns = 0
        self._decode = decode
        self._shelf: dict[str, deque[tuple[int, bytes]]] = {}
        self._bytes = 0
        self._flows: tuple[int, dict[str, Flow]] = (-1, {})

    def take(self, host: str, value: bytes, append_ns: int) -> None:
        """Take one message of a host."""
        shelf = self._shelf.pop(host, None) or deque()
        self._shelf[host] = shelf  # last: the hosts that reported longest ago stand first
        shelf.append((append_ns, value))
        self._bytes += len(value)
        self.newest_ns = max(self.newest_ns, append_ns)
        while len(shelf) > 1 and shelf[0][0] < self.newest_ns - KEPT_NS:
            self._bytes -= len(shelf.popleft()[1])
        while len(self._shelf) > MOST_HOSTS or (self._bytes > MOST_BYTES and len(self._shelf) > 1):
            self._drop(next(iter(self._shelf)))
        self.version += 1

    def flows(self) -> dict[str, Flow]:
        """Return the open flows by id, each with the host that reports it as `host`."""
        if self._flows[0] != self.version:
            found: dict[str, Flow] = {}
            for host in [h for h, s in self._shelf.items() if s[-1][0] < self.newest_ns - KEPT_NS]:
                self._drop(host)
            for host, shelf in self._shelf.items():
                found.update(self._of(host, shelf))
            self._flows = (self.version, found)
        return self._flows[1]

    def _of(self, host: str, shelf: deque[tuple[int, bytes]]) -> dict[str, Flow]:
        """The newest complete report and the changes after it."""
        later: list[Mapping[str, Any]] = []
        for _, value in reversed(shelf):
            try:
                report = self._decode(value)
            except ValueError:
                self.unreadable += 1
                continue
            later.append(report)
            if report["whole"]:
                break
        flows: dict[str, Flow] = {}
        for report in reversed(later):
            for flow in report["flows"]:
                if flow["state"] == "CLOSED":
                    flows.pop(flow["flow_id"], None)
                else:
                    flows[flow["flow_id"]] = {**flow, "host": host}
        return flows

    def _drop(self, host: str) -> None:
        self._bytes -= sum(len(value) for _, value in self._shelf.pop(host))


def crossing(flows: Mapping[str, Flow], links: Collection[str]) -> list[Flow]:
    """Return the flows that cross one of the links, the heaviest first."""
    wanted = set(links)
    found = [flow for flow in flows.values() if not wanted.isdisjoint(flow["links"])]
    return sorted(found, key=lambda flow: -flow["rate_bps"])
