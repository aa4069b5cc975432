"""The console of a run whose reader has gone."""

import asyncio
import os

from fabrictime.commands.up.console import RunConsole


def test_closed_pipe_requests_the_stop_and_drops_further_output():
    reader, writer = os.pipe()
    stop = asyncio.Event()
    with os.fdopen(writer, "w") as stream:
        console = RunConsole(stop, stream)
        console.print("log ready")
        assert not stop.is_set()
        assert os.read(reader, 100) == b"log ready\n"
        os.close(reader)
        console.print("all ready")
        assert stop.is_set()
        assert console.is_closed
        console.print("stopped")
