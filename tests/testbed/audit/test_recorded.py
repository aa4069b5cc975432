"""The recorded host: a copy may be changed, and denied reads are counted."""

from __future__ import annotations

import pytest

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.host.base import Missing, Unreadable


def test_a_copy_changes_nothing_in_the_healthy_host() -> None:
    host = HEALTHY.copy()
    host.files["/proc/uptime"] = "1 1"
    assert host.read("/proc/uptime") == "1 1"
    assert HEALTHY.read("/proc/uptime") != "1 1"


def test_denied_and_absent_files_differ() -> None:
    host = HEALTHY.copy()
    host.denied = {"/proc/uptime"}
    with pytest.raises(Unreadable, match="Permission denied"):
        host.read("/proc/uptime")
    assert host.refusals == 1
    with pytest.raises(Missing):
        host.read("/nothing")
    assert {"/proc/uptime", "adjtimex"} <= set(host.readable())
