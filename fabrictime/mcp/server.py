"""The state of the fleet for assistants, by the Model Context Protocol.

Each tool reads one route of the page's HTTP interface (`fabrictime/web/api.py`), and changes nothing. The
server uses standard input and output: it opens no port, and runs with the rights of the assistant's user.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import httpx
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

TIMEOUT_S: Final = 10.0
_READS: Final = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
INSTRUCTIONS: Final = (
    "State of the network of a GPU cluster, read-only. Begin with fleet_health. If is_fresh is false, the "
    "evidence is missing: do not call the fleet healthy. Times are ns since the Unix epoch."
)


class Fleet:
    """The server's tools. Each returns JSON from the page's HTTP interface, or fails with a line of text."""

    def __init__(
        self, url: str, token: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Read from the page at `url`, as the user with `token`."""
        headers = {} if token is None else {"Authorization": f"Bearer {token.strip()}"}
        self._client = httpx.AsyncClient(
            base_url=url, timeout=TIMEOUT_S, transport=transport, headers=headers
        )

    async def close(self) -> None:
        """Close the connections to the page."""
        await self._client.aclose()

    def server(self) -> MCPServer:
        """Return the MCP server with all tools."""
        server = MCPServer("fabrictime", instructions=INSTRUCTIONS, log_level="WARNING")
        for tool in (
            self.fleet_health,
            self.job_verdict,
            self.list_jobs,
            self.list_actions,
            self.list_links,
            self.list_contention,
            self.host_switches,
        ):
            server.tool(annotations=_READS)(tool)
        return server

    async def fleet_health(self) -> dict[str, Any]:
        """Return the fleet in one sentence and figures, and the active alerts, the worst first."""
        return {"health": await self._get("health"), "alerts": await self._get("alerts")}

    async def job_verdict(self, job: str) -> dict[str, Any]:
        """Return the newest verdict about a job: cause, confidence, evidence that is missing, remedy."""
        verdict: dict[str, Any] = await self._get(f"jobs/{quote(job, safe='')}")
        return verdict

    async def list_jobs(self) -> list[dict[str, Any]]:
        """Return the running jobs with their verdicts."""
        return await self._list("jobs")

    async def list_actions(self, name: str = "") -> list[dict[str, Any]]:
        """Return decisions with cause, outcome and effect; `name`: a part of a flow's id."""
        return await self._list("actions", name=name)

    async def list_links(self, name: str = "") -> list[dict[str, Any]]:
        """Return the links, NICs and hosts that are not UP; `name`: a part of the subject."""
        return await self._list("links", name=name)

    async def list_contention(self) -> list[dict[str, Any]]:
        """Return the links on which flows contend now, the longest delay first."""
        return await self._list("contention")

    async def host_switches(self, host: str) -> list[dict[str, Any]]:
        """Return the switches of a host from leaf to core, in each network."""
        return await self._list(f"hosts/{quote(host, safe='')}")

    async def _list(self, path: str, **query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self._get(path, **query)
        return rows

    async def _get(self, path: str, **query: str) -> Any:
        """Return the JSON of a route. Raises ToolError with one line of text, which the assistant gets."""
        try:
            answer = await self._client.get(f"/api/v1/{path}", params=query)
        except httpx.HTTPError as error:
            raise ToolError(f"{self._client.base_url}: {error or type(error).__name__}") from error
        if answer.status_code != httpx.codes.OK:
            try:
                detail = answer.json()["detail"]
            except (ValueError, KeyError, TypeError):
                detail = "expected the page of fabrictime"
            raise ToolError(f"{answer.url}: {answer.status_code}: {detail}")
        return answer.json()


def main(url: str, token: str | None = None) -> int:
    """Serve on standard input and output until the input closes. Return the exit code."""
    Fleet(url, token).server().run()
    return 0
