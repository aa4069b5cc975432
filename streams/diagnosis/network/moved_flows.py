"""Finds flows of a job that left a link, because routing or a decision moved them to another route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from schemas.records import Flow
from streams.diagnosis.network.view import Links
from streams.runtime.units import NS_PER_S

KEEP_NS: Final = 600 * NS_PER_S
"""Time for which a link that a flow left is remembered."""

LinksLeft = dict[str, dict[str, int]]
"""Maps link to the flows that left it, each with the last time at which it was known to cross the link."""


class MovedFlows:
    """Compares the routes of a job's flows with their routes in the previous interval."""

    def __init__(self, keep_ns: int = KEEP_NS) -> None:
        self._keep_ns = keep_ns
        self._routes: dict[str, Links] = {}
        self._at_ns = 0
        self._left: LinksLeft = {}
        self._restored: dict[str, tuple[int, frozenset[str]]] = {}
        """Links of the last verdict before a restart, each with the verdict's time and the NICs of its
        pairs."""

    def restore(self, links: Iterable[str], nics: Iterable[str], at_ns: int) -> None:
        """Restore the links and NICs of the last verdict before a restart: flows had crossed these links."""
        for link in links:
            self._restored[link] = at_ns, frozenset(nics)

    def links_left(self, flows: Mapping[str, Flow], routes: Mapping[str, Links]) -> LinksLeft:
        """Return, by link, the flows that left it and when, ns, including flows that have just left."""
        flows_by_link: LinksLeft = {}
        for link, left in self._left.items():
            flows_by_link[link] = {
                name: ns for name, ns in left.items() if link not in routes.get(name, (link,))
            }
        for name, links in routes.items():
            before = self._routes.get(name, links)
            if before != links:
                for link in set(before).difference(links):
                    flows_by_link.setdefault(link, {})[name] = self._at_ns
        for link, (at_ns, nics) in self._restored.items():
            for name, flow in flows.items():
                if flow["nic"] in nics and flow["peer"] in nics and link not in routes.get(name, (link,)):
                    flows_by_link.setdefault(link, {}).setdefault(name, at_ns)
        return flows_by_link

    def note(self, flows: Mapping[str, Flow], routes: Mapping[str, Links], at_ns: int) -> None:
        """Record the open flows and their known routes at the end of an interval, `at_ns`."""
        oldest_ns = at_ns - self._keep_ns
        self._left = {
            link: recent
            for link, left in self.links_left(flows, routes).items()
            if (recent := {name: ns for name, ns in left.items() if ns >= oldest_ns and name in flows})
        }
        self._restored = {link: entry for link, entry in self._restored.items() if entry[0] >= oldest_ns}
        self._routes = {name: links for name, links in self._routes.items() if name in flows} | dict(routes)
        self._at_ns = max(self._at_ns, at_ns)
