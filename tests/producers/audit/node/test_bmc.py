"""The event log and the sensors of a BMC: parts by entity, and faults that end."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_machine import SENSORS
from producers.audit.base import run_check
from producers.audit.node.bmc import CHECKS, events, sensors
from schemas.records import AuditStatus

BY_ID = {check.check_id: check for check in CHECKS}


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
    assert len(events(f"{start} Critical Interrupt #0x05 | PCI SERR | Asserted")) == 1
    for text in (
        "Temperature #0x30 | Upper Non-critical going high | Asserted",
        "Critical Interrupt #0x05 | Bus Correctable error | Asserted",
        "OS Boot | boot completed - default | Asserted",
        f"PS | AC lost | Asserted\n{start} PS | AC lost | Deasserted",
    ):
        assert events(f"{start} {text}") == {}


def log(*entries: str) -> str:
    return "".join(
        f" {number:3x} | 11/20/2026 | 10:35:41 | {entry}\n" for number, entry in enumerate(entries, 1)
    )


@pytest.mark.parametrize(
    "entries",
    [
        ("PS Redundancy | Redundancy Lost | Asserted", "PS Redundancy | Fully Redundant | Asserted"),
        (
            "Fan #0x0c | Redundancy Lost | Asserted",
            "Fan #0x0c | Redundancy Degraded | Asserted",
            "Fan #0x0c | Redundancy Regained | Asserted",
        ),
        (
            "Temp #0x30 | Upper Critical going high | Asserted | Reading 90 > Threshold 85 degrees C",
            "Temp #0x30 | Upper Non-critical going high | Deasserted | Reading 70 < Threshold 75 degrees C",
        ),
        (
            "Fan #0x31 | Lower Non-recoverable going low  | Asserted",
            "Fan #0x31 | Lower Critical going low  | Deasserted",
        ),
        (
            "Fan #0x31 | Transition to Critical from less severe | Asserted",
            "Fan #0x31 | Transition to OK | Asserted",
        ),
        (
            "Drive #0x60 | Predictive Failure Asserted | Asserted",
            "Drive #0x60 | Predictive Failure Deasserted | Asserted",
        ),
        (
            "Power Supply PS1 | Power Supply AC lost | Asserted",
            "Power Supply PS1 | AC power restored | Asserted",
        ),
        (
            "Power Supply PS1 | Failure detected | Asserted",
            "Power Supply PS1 | Failure detected | Deasserted",
        ),
    ],
)
def test_faults_end_with_their_cause(entries: tuple[str, ...]) -> None:
    assert events(log(*entries)) == {}
    assert len(events(log(*entries[:-1]))) == len(entries) - 1


@pytest.mark.parametrize(
    "later",
    [
        "Fan Redundancy | Fully Redundant | Asserted",
        "PS Redundancy | Fully Redundant | Deasserted",
        "PS Redundancy | Non-Redundant: Sufficient Resources from Redundant | Asserted",
    ],
)
def test_events_of_other_sensors_and_states_end_no_fault(later: str) -> None:
    assert events(log("PS Redundancy | Redundancy Lost | Asserted", later)) == {
        ("PS Redundancy", "Redundancy Lost"): 1
    }


def test_a_recovered_threshold_does_not_end_a_more_distant_one() -> None:
    start = "Temp #0x30 | Upper Critical going high | Asserted"
    for later in (
        "Temp #0x30 | Upper Non-recoverable going high | Deasserted",
        "Temp #0x30 | Lower Critical going low | Deasserted",
    ):
        assert len(events(log(start, later))) == 1


def test_entries_with_fewer_columns_and_before_the_clock_was_set() -> None:
    text = (
        "   2 | Linux kernel panic: Fatal excep\n"
        "   3 | OEM record c1 | 000157 | 00a000000000\n"
        "   4 |  Pre-Init  |0000000013| Power Supply PS1 Status | Failure detected | Asserted\n"
        "   5 | 11/20/2026 | 10:36:00 | OS Stop/Shutdown #0x46 | Run-time critical stop | Asserted\n"
        "   6 | 11/20/2026 | 10:36:00 | OS Stop/Shutdown #0x46 | OS graceful shutdown | Asserted\n"
    )
    assert events(text) == {
        ("", "Linux kernel panic: Fatal excep"): 1,
        ("Power Supply PS1 Status", "Failure detected"): 1,
        ("OS Stop/Shutdown #0x46", "Run-time critical stop"): 1,
    }
    assert events("SEL has no entries\n") == {}


@pytest.mark.parametrize(
    ("line", "check"),
    [
        ("STATUS_PSU3      | 87h | ok  | 10.3 | Presence detected, Failure detected", "power-supplies"),
        (
            "Power Supply 2   | 07h | ok  | 10.2 | 0 Watts, Presence detected, Power Supply AC lost",
            "power-supplies",
        ),
        ("Status           | 86h | ok  | 10.2 | Presence detected, Failure detected", "power-supplies"),
        ("PSU Redundancy   | E8h | ok  | 19.1 | Redundancy Lost", "power-supplies"),
        ("SYS_1A           | 30h | cr  | 29.1 | 0 RPM", "fans"),
        ("Fan Block 1      | 09h | ok  |  7.1 | 21.56 percent, Transition to Critical", "fans"),
        ("dimm4            | 05h | ok  | 32.5 | Memory Device Disabled, Presence Detected", "parts"),
        ("P1 Status        | 70h | ok  |  3.1 | Thermal Trip, Presence detected", "parts"),
        ("Drive 3          | 60h | ok  | 26.4 | Drive Present, Drive Fault", "parts"),
        ("P1 DIMM Temp     | 05h | cr  |  8.5 | 96 degrees C", "sensors"),
    ],
)
def test_sensors_belong_to_parts_by_entity(line: str, check: str) -> None:
    host = HEALTHY.copy()
    host.commands[SENSORS] += f"{line}\n"
    failed = [name for name in BY_ID if run_check(BY_ID[name], host).status is AuditStatus.FAILED]
    assert failed == [f"node.{check}"]


@given(st.text(max_size=120))
def test_odd_output_is_an_error_of_value(text: str) -> None:
    events(f"1 | 2 | 3 | {text}")
    events(text)
    with suppress(ValueError):
        sensors(text)


def test_a_machine_without_a_bmc_skips_its_checks() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if path != "/dev/ipmi0"}
    for check in CHECKS:
        assert run_check(check, host).status is AuditStatus.SKIPPED
