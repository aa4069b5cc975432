"""Parsers of what dmidecode, ipmitool and /proc print, and checks of machines without a BMC."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import run_check
from producers.audit.hardware import CHECKS, blocks, events, free_blocks, interrupts, sensors
from schemas.records import AuditStatus

BY_ID = {check.check_id: check for check in CHECKS}


def test_memory_devices() -> None:
    text = "# dmidecode 3.5\nMemory Device\n\tSize: 64 GB\n\tLocator: A1\n\nMemory Device\n\tSize: 32 GB\n"
    assert blocks(text) == [{"Size": "64 GB", "Locator": "A1"}, {"Size": "32 GB"}]


def test_interrupts_are_added_over_processors() -> None:
    assert interrupts("  CPU0 CPU1\n MCE:   1   2   Machine check exceptions\n", "MCE") == 3
    assert interrupts("ERR: 0", "MCE") is None


def test_free_blocks_of_a_zone() -> None:
    assert free_blocks("Node 0, zone   Normal  4 2 1") == {("0", "Normal"): [4, 2, 1]}
    with pytest.raises(ValueError, match="expected a node and a zone"):
        free_blocks("odd")


def test_sensors_of_a_bmc() -> None:
    found = sensors("Fan1 | 30h | ok  | 29.1 | 9000 RPM\nCPU1 Temp | 0Eh | ns | 3.1 | No Reading")
    assert [(each.name, each.status, each.reading) for each in found] == [
        ("Fan1", "ok", "9000 RPM"),
        ("CPU1 Temp", "ns", "No Reading"),
    ]
    for text in ("", "Fan1 | ok"):
        with pytest.raises(ValueError):
            sensors(text)


def test_events_that_ended_and_those_below_a_fault_are_left_out() -> None:
    start = "1 | 11/20/2026 | 10:35:41 |"
    assert events(f"{start} Power Supply #0x85 | Power Supply AC lost | Asserted") == {
        ("Power Supply #0x85", "Power Supply AC lost"): 1
    }
    for text in (
        "Temperature #0x30 | Upper Non-critical going high | Asserted",
        "Critical Interrupt #0x05 | Bus Correctable error | Asserted",
        "OS Boot | boot completed - default | Asserted",
        f"PS | AC lost | Asserted\n{start} PS | AC lost | Deasserted",
    ):
        assert events(f"{start} {text}") == {}


@given(st.text(max_size=120))
def test_odd_output_is_an_error_of_value(text: str) -> None:
    assert isinstance(blocks(text), list)
    interrupts(text, "MCE")
    events(f"1 | 2 | 3 | {text}")
    for parse in (free_blocks, sensors):
        try:
            parse(text)
        except ValueError:
            continue


def test_a_machine_without_a_bmc_skips_its_checks() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if path != "/dev/ipmi0"}
    for name in ("events", "sensors", "fans", "power-supplies"):
        assert run_check(BY_ID[f"node.{name}"], host).status is AuditStatus.SKIPPED


def test_nodes_without_processors_are_not_compared() -> None:
    host = HEALTHY.copy()
    host.files |= {
        "/sys/devices/system/node/node2/cpulist": "\n",
        "/sys/devices/system/node/node2/meminfo": "Node 2 MemTotal: 97000000 kB\n",
    }
    assert run_check(BY_ID["node.numa-memory"], host).status is AuditStatus.PASSED
