"""XIDs and SXids: the catalogue, the forms of lines, the faults of hosts and of programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.gpu.xids import ACTIONS, XidFinder, catalogue, find_sxid
from producers.audit.logs.lines import parse_line, read_lines
from producers.audit.logs.rules import events_of, findings
from schemas.records import AuditStatus

PASSED, FAILED = AuditStatus.PASSED, AuditStatus.FAILED
PROGRAM = (13, 31, 43, 45)
NOW_S = 50_000.0


def status_of(*lines: str, apart_s: float = 0.0001) -> AuditStatus:
    log = "\n".join(f"[{1000 + index * apart_s:12.6f}] NVRM: {line}" for index, line in enumerate(lines))
    results = [finding.status for finding in findings(events_of(read_lines(log), XidFinder().find), NOW_S)]
    return FAILED if FAILED in results else results[0]


def xid(number: int, text: str = "pid=812, name=python") -> str:
    return f"Xid (PCI:0000:38:00): {number}, {text}"


def test_the_catalogue_knows_every_number_and_its_action() -> None:
    assert set(range(1, 173)) <= set(catalogue())
    for row in catalogue().values():
        assert row.action in ACTIONS or row.action in ("NVLINK", "STATED")
        assert row.source


@pytest.mark.parametrize("number", PROGRAM)
def test_errors_of_programs_are_no_fault_of_the_host(number: int) -> None:
    assert status_of(*[xid(number)] * 16) is PASSED
    assert status_of(*[xid(number)] * 200, apart_s=120.0) is PASSED


@pytest.mark.parametrize(
    ("number", "status"),
    [(48, FAILED), (63, PASSED), (64, FAILED), (79, FAILED), (92, PASSED), (95, FAILED), (119, FAILED)],
)
def test_faults_follow_the_action_of_the_catalogue(number: int, status: AuditStatus) -> None:
    assert status_of(xid(number)) is status


def test_events_count_and_lines_do_not() -> None:
    assert status_of(*[xid(39)] * 16) is PASSED
    assert status_of(*[xid(39)] * 4, apart_s=600.0) is PASSED
    assert status_of(*[xid(39)] * 5, apart_s=600.0) is FAILED


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("145, RLW_REMAP           Fatal    XC0 i0 Link 13 (0x00000004 0x00000040 0x0)", FAILED),
        ("145, RLW_REMAP Nonfatal XC0 i0 Link 13 (0x00000004 0x00000001 0x0)", PASSED),
        ("144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x0)", PASSED),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x0)", PASSED),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a4c2 0x00000001 0x0)", FAILED),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00000086 0x00000001 0x0)", FAILED),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00000013 0x00000001)", PASSED),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)", FAILED),
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)", FAILED),
        ("150, MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x00000000 0x00000000)", FAILED),
    ],
)
def test_lines_of_nvlink_5_state_whether_they_are_fatal(text: str, status: AuditStatus) -> None:
    assert status_of(f"Xid (PCI:0018:01:00): {text}") is status


def test_a_lost_link_names_its_cause() -> None:
    line = parse_line("NVRM: Xid (PCI:0019:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x0)")
    found = XidFinder().find(line)
    assert found is not None
    assert "the device at the other end" in found.text
    assert found.subject == "GPU 0019:01:00"


@pytest.mark.parametrize(
    ("registers", "status"),
    [("0x1, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", PASSED), ("0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", FAILED)],
)
def test_registers_of_older_nvlinks_can_be_ignored(registers: str, status: AuditStatus) -> None:
    assert status_of(xid(74, f"pid=1, NVLink: fatal error detected on link 14({registers})")) is status


RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
NONE = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def test_the_driver_states_the_action_and_that_it_is_done() -> None:
    assert status_of(xid(119), xid(154, RESET)) is FAILED
    assert status_of(xid(119), xid(154, RESET), xid(154, NONE)) is PASSED
    assert status_of(xid(119), "Xid (PCI:0000:9b:00): 154, " + NONE) is FAILED


def test_a_driver_that_is_loaded_again_ends_faults_but_no_lost_gpu() -> None:
    loaded = "loading NVIDIA UNIX x86_64 Kernel Module  550.127.08"
    assert status_of(xid(119), loaded) is PASSED
    assert status_of(xid(79), loaded) is FAILED


def test_a_lost_gpu_without_an_xid_is_one_event_with_it() -> None:
    lost = "GPU 0000:38:00.0: GPU has fallen off the bus."
    named = ("The NVIDIA GPU 0000:38:00.0 (PCI ID: 10de:2330)", "fallen off the bus and is not responding")
    log = "\n".join(f"NVRM: {line}" for line in (xid(79), lost, *named))
    (event,) = events_of(read_lines(log), XidFinder().find)
    assert (event.subject, event.lines) == ("GPU 0000:38:00", 3)


@pytest.mark.parametrize(
    ("text", "is_fault"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", True),
        ("12028, Non-fatal, Link 32 egress non-posted PRIV error", False),
        ("20034, Data {0x50610002, 0x10100030}", None),
    ],
)
def test_switches_state_whether_a_line_is_fatal(text: str, is_fault: bool | None) -> None:
    found = find_sxid(parse_line(f"nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): {text}"))
    assert (found.rule.is_fault if found else None) is is_fault


@given(st.integers(0, 10**6), st.text(max_size=80))
def test_any_line_of_the_driver_is_read(number: int, text: str) -> None:
    for line in (xid(number, text), f"SXid (PCI:0000:a9:00.0): {number}, {text}", text):
        parsed = parse_line(f"NVRM: {line}")
        found = XidFinder().find(parsed)
        assert found is None or found.text
