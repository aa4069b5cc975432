"""The MCP server, asked by the official client: tools read the page's interface."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from fabrictime.mcp.server import Fleet
from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_consumer import ConsumerStatus
from fabrictime.state.fabric_state import FabricState
from fabrictime.web.api import Api
from fabrictime.web.live_fabric import LiveFabric
from schemas import codec
from schemas.run_module import module_command
from tests.fabrictime.job_records import JobRecords


def ask(state: FabricState, tool: str, **arguments: str) -> Any:
    """Return the result of a tool of a server that reads this state."""
    app = FastAPI()
    app.include_router(Api(LiveFabric(state, ConsumerStatus, time.time_ns, Verdict)).router())
    fleet = Fleet("http://page", transport=httpx.ASGITransport(app))

    async def call() -> Any:
        async with Client(fleet.server()) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(call())


def test_fleet_health_has_figures_and_alerts(state: FabricState, fabric: Any) -> None:
    state.take("fabric.alerts", "h1/eth1", fabric.alert("h1/eth1", "NIC is dead"), fabric.now_ns)
    result = ask(state, "fleet_health")
    assert not result.is_error
    assert [alert["text"] for alert in result.structured_content["alerts"]] == ["NIC is dead"]
    assert result.structured_content["health"]["is_fresh"] is True


@pytest.mark.parametrize("name", ["llama", "team/llama 7b?x=1#y"])
def test_a_job_is_explained_whatever_its_name(state: FabricState, fabric: Any, name: str) -> None:
    record = JobRecords(fabric, name).diagnosis(1, fabric.now_ns, slow=2, text="rank 2 is late")
    state.take_diagnosis(record, codec.encode("Diagnosis", record), fabric.now_ns)
    result = ask(state, "job_verdict", job=name)
    assert not result.is_error
    assert result.structured_content["text"] == "rank 2 is late"


def test_an_unknown_job_is_one_line(state: FabricState) -> None:
    result = ask(state, "job_verdict", job="other")
    assert result.is_error
    assert "job 'other': no verdict within the last hour" in result.content[0].text


def test_every_tool_is_marked_as_reading(state: FabricState) -> None:
    async def tools() -> Any:
        async with Client(Fleet("http://page").server()) as client:
            return (await client.list_tools()).tools

    listed = asyncio.run(tools())
    assert len(listed) == 7
    assert all(tool.description and tool.annotations.read_only_hint for tool in listed)


def test_the_command_speaks_on_standard_input_and_names_a_page_that_is_gone(tmp_path: Path) -> None:
    command, *arguments = module_command("fabrictime", "mcp", "--url", "http://127.0.0.1:1")
    parameters = StdioServerParameters(command=command, args=arguments, cwd=tmp_path)

    async def call() -> Any:
        async with Client(stdio_client(parameters, errlog=sys.stderr)) as client:
            return await client.call_tool("list_jobs", {})

    result = asyncio.run(call())
    assert result.is_error
    assert "http://127.0.0.1:1" in result.content[0].text
