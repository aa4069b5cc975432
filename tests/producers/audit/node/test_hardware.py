"""Parsers of what dmidecode and /proc print, and machines of other kinds."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_machine import DMIDECODE
from producers.audit.base import run_check
from producers.audit.node.hardware import CHECKS, blocks, free_blocks, interrupts, page_bytes, slot_value
from schemas.records import AuditStatus

HUGE = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
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


@given(st.text(max_size=120))
def test_odd_output_is_an_error_of_value(text: str) -> None:
    assert isinstance(blocks(text), list)
    interrupts(text, "MCE")
    with suppress(ValueError):
        free_blocks(text)


def test_nodes_without_processors_are_not_compared() -> None:
    host = HEALTHY.copy()
    host.files |= {
        "/sys/devices/system/node/node2/cpulist": "\n",
        "/sys/devices/system/node/node2/meminfo": "Node 2 MemTotal: 97000000 kB\n",
    }
    assert run_check(BY_ID["node.numa-memory"], host).status is AuditStatus.PASSED


def test_memory_devices_of_an_older_dmidecode() -> None:
    host = HEALTHY.copy()
    host.commands[DMIDECODE] = host.commands[DMIDECODE].replace(
        "Configured Memory Speed", "Configured Clock Speed"
    )
    assert run_check(BY_ID["node.dimms"], host).status is AuditStatus.PASSED
    host.commands[DMIDECODE] = host.commands[DMIDECODE].replace("Speed: 4800", "Speed: 4000", 2)
    assert run_check(BY_ID["node.dimms"], host).status is AuditStatus.FAILED
    assert slot_value({"Size": "64 GB"}, ("Configured Memory Speed",)) == "not stated"


@pytest.mark.parametrize("text", ["", "Memory Device\n", "Memory Device\n\tForm Factor: DIMM\n"])
def test_memory_devices_without_a_size_are_no_fault(text: str) -> None:
    host = HEALTHY.copy()
    host.commands[DMIDECODE] = text
    result = run_check(BY_ID["node.dimms"], host)
    assert (result.status, result.text) == (
        AuditStatus.SKIPPED,
        "the firmware describes no memory device",
    )


PAGES_OF_64_KB = "Node 0, zone   Normal   40   30   20   10   10   900   400   100   20   0   0   0   0   0"


@pytest.mark.parametrize(
    ("files", "free", "status"),
    [
        ({}, PAGES_OF_64_KB, AuditStatus.PASSED),
        ({HUGE: "536870912"}, PAGES_OF_64_KB.removesuffix("   0"), AuditStatus.PASSED),
        ({HUGE: "2097152"}, PAGES_OF_64_KB, AuditStatus.FAILED),
        ({}, "Node 0, zone   Normal   40   30   20   10   10   0   0   0   0   0   0   0   0   0", "FAILED"),
    ],
)
def test_large_blocks_by_the_size_of_a_page(files: dict[str, str], free: str, status: str) -> None:
    host = HEALTHY.copy()
    host.files |= files | {"/proc/buddyinfo": free}
    assert run_check(BY_ID["node.fragmentation"], host).status == status


def test_the_size_of_a_page() -> None:
    host = HEALTHY.copy()
    assert [page_bytes(host, orders) for orders in (11, 12, 14)] == [4096, 16384, 65536]
    host.files[HUGE] = "33554432"
    assert page_bytes(host, 11) == 16384
