"""Events of NICs in the kernel log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.logs.lines import Line, parse_line, read_lines
from producers.audit.logs.nic_log import flaps
from schemas.records import AuditStatus

DAY_S = 86_400.0


def link(at_s: float, state: str, name: str = "eth0") -> Line:
    return parse_line(f"[{at_s:12.6f}] mlx5_core 0000:17:00.0 {name}: Link {state}")


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("mlx5_core 0000:17:00.0 eth0: Link down", True),
        ("ixgbe 0000:01:00.0 eno1: NIC Link is Down", True),
        ("bnxt_en 0000:01:00.0 ens1f0np0: NIC Link is Down", True),
        ("ice 0000:01:00.0 eth0: Link is downgraded", False),
        ("systemd: Linked up: down", False),
    ],
)
def test_messages_of_several_drivers_are_known(text: str, is_found: bool) -> None:
    assert bool(list(flaps([parse_line(f"[    5.000000] {text}")], 10.0))) is is_found


def status(log: list[Line], now_s: float) -> AuditStatus:
    (found,) = flaps(log, now_s)
    return found.status


def test_five_losses_a_day_pass_and_six_do_not() -> None:
    log = [link(100.0 * n + at, state) for n in range(6) for at, state in ((0.0, "down"), (1.0, "up"))]
    assert status(log, 700.0) is AuditStatus.FAILED
    assert status(log[2:], 700.0) is AuditStatus.PASSED
    assert status(log, 700.0 + DAY_S) is AuditStatus.PASSED


def test_three_long_outages_fail_and_the_last_one_may_last() -> None:
    log = [link(0.0, "down"), link(30.0, "up"), link(100.0, "down"), link(130.0, "up"), link(200.0, "down")]
    assert status(log, 210.0) is AuditStatus.PASSED
    assert status(log, 225.0) is AuditStatus.FAILED


@given(st.text(max_size=200), st.floats(0, 1e9))
def test_any_log_ends_no_check(text: str, now_s: float) -> None:
    for log in (text, f"[    1.000000] {text}", f"[    1.000000] eth0: Link {text}"):
        list(flaps(read_lines(log), now_s))
