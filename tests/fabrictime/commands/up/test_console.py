"""The console of a run whose reader has gone."""

import asyncio
import os
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(("address", "pause_s"), [("/run/systemd/notify", "60.0"), (None, "5.0")])
def test_the_journal_of_a_service_gets_a_line_of_figures_per_minute(address, pause_s):
    environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    environment |= {"NOTIFY_SOCKET": address} if address else {}
    code = "from fabrictime.commands.up.pipeline import PLAIN_EVERY_S; print(PLAIN_EVERY_S)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == pause_s
