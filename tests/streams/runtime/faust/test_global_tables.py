"""Global tables at the start: whatever order the log gives, a record meets the tables that check it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from schemas.kafka.start import BEGINNING
from schemas.topics import FLOWS, INVENTORY
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.faust.global_tables import GlobalTableReader
from tests.embedded_log import EmbeddedLog
from tests.records import make, make_part

HOSTS = 40


def test_a_record_with_an_unexpected_error_in_its_check_is_refused() -> None:
    """Tables are read from their beginning, so such a record would end each later process, too."""
    refusals: list[str] = []

    def check(message: Message) -> None:
        raise AttributeError("'str' object has no attribute 'hex'")

    reader = GlobalTableReader(
        FabricTables(), {}, KafkaSettings(), lambda message, error: refusals.append(error.reason), check
    )
    reader._take([Message(1, INVENTORY.name, 0, 0, "h1/eth0", b"")])
    assert refusals == ["OTHER"]


async def test_flows_that_are_read_before_their_nics_count(tmp_path: Path) -> None:
    """Each partition is read for itself, so flows may come before the inventory."""
    tables, refusals = FabricTables(), []
    with EmbeddedLog(tmp_path / "log") as log:
        for number in range(HOSTS):
            nic, flow_id = f"h{number}/eth0", f"h{number}/run/sock:1"
            flow = make_part("FlowReports", "Flow", flow_id=flow_id, nic=nic, peer="h0/eth0")
            log.put(FLOWS.name, f"h{number}", make("FlowReports", host=f"h{number}", flows=[flow]))
        for number in range(HOSTS):
            log.put(INVENTORY.name, f"h{number}/eth0", make("Nic", nic=f"h{number}/eth0", host=f"h{number}"))
        reader = GlobalTableReader(
            tables,
            {FLOWS: BEGINNING, INVENTORY: BEGINNING},
            KafkaSettings(bootstrap=log.bootstrap),
            lambda message, error: refusals.append(str(error)),
        )
        reading = asyncio.create_task(reader.run())
        await asyncio.wait(
            (reading, asyncio.create_task(reader.caught_up.wait())), return_when="FIRST_COMPLETED"
        )
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert refusals == []
    assert tables.flows.refused == 0
