"""The search field in the header of all tabs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from nicegui.events import GenericEventArguments

from fabrictime.state.search_index import MAX_QUERY, Kind, Result
from fabrictime.web.addresses import actions_address, alert_address, fabric_address, jobs_address
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.widgets import LiveList
from schemas.ids import host_of

HEADINGS: Final[dict[Kind, str]] = {
    "host": "hosts",
    "NIC": "NICs",
    "switch": "switches",
    "rack": "racks",
    "job": "jobs",
    "link": "links",
    "alert": "alerts",
    "flow": "flows",
}


def result_address(result: Result) -> str:
    """Return the address of the tab that shows a result."""
    match result.kind:
        case "job":
            return jobs_address(job=result.key)
        case "flow":
            return actions_address(flow=result.key)
        case "alert":
            return alert_address(result.key)
        case "link":
            return fabric_address(link=result.key)
        case "rack":
            return fabric_address(rack=result.key)
    return fabric_address(node=host_of(result.key))


class SearchBox(LiveList[Any], component="search.js"):
    """A field for a part of a name, with a list of the matching objects by kind. Enter opens an object."""

    def __init__(self, live: Callable[[], LiveFabric | None]) -> None:
        super().__init__()
        self._live = live
        self._query = ""
        self.on("query", self._on_query)

    async def _on_query(self, event: GenericEventArguments) -> None:
        """Search in a thread, because the flows of a large fleet take a while to decode."""
        query = self._query = str(event.args)[:MAX_QUERY]
        live = self._live()
        results = [] if live is None else await asyncio.to_thread(live.search.find, query)
        if query == self._query:  # otherwise the reader has typed on
            self.put(
                [query, *([HEADINGS[one.kind], one.name, one.detail, result_address(one)] for one in results)]
            )

    def state(self) -> dict[str, Any]:
        """Return the state that the browser's component receives in its method `put`."""
        return {"query": self._shown[0] if self._shown else None, "rows": self._shown[1:]}
