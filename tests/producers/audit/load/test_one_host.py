"""Active checks: programs that are not installed, and loads that end within their limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fabrictime.testbed.audit import recorded_active as recorded
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import run_check
from producers.audit.host.base import Missing, Unreadable
from producers.audit.host.live import LiveHost
from producers.audit.load.one_host import CHECKS, LOOPBACK, program
from schemas.records import AuditStatus
from tests.waiting import wait_until

BY_ID = {check.check_id: check for check in CHECKS}


def test_programs_that_are_not_installed_are_skipped() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if path not in recorded.files()}
    for check in CHECKS:
        assert check.active
        if check.check_id != "node.memory-bandwidth":
            assert run_check(check, host).status is AuditStatus.SKIPPED, check.check_id


def test_a_program_is_found_in_the_first_folder() -> None:
    assert program(HEALTHY, "fio") == "/usr/bin/fio"
    with pytest.raises(Missing, match="hpl: not installed"):
        program(HEALTHY, "hpl")


def test_a_part_of_a_machine_has_its_part_of_the_memory_bandwidth() -> None:
    host = HEALTHY.copy()
    host.commands[recorded.MEMORY] = "120.5\n"
    [*_, last] = sorted(path for path in host.files if host.files[path] == "0x030200\n")
    whole = run_check(BY_ID["node.memory-bandwidth"], host).text
    host.files[last] = "0x060400\n"
    part = run_check(BY_ID["node.memory-bandwidth"], host).text
    assert whole.endswith("expected at least 307.0")
    assert part.endswith("expected at least 268.6")


def test_a_machine_of_unknown_type_has_no_threshold() -> None:
    host = HEALTHY.copy()
    for path in [path for path in host.files if path.endswith("/device")]:
        host.files[path] = "0xffff"
    host.commands[recorded.IN_HOST] = recorded.reduced(12.0)
    result = run_check(BY_ID["collectives.nccl"], host)
    assert result.status is AuditStatus.PASSED
    fact = result.findings[0].fact
    assert fact is not None
    assert (fact.name, fact.number) == ("all_reduce_gb_per_s", 12.0)


def test_one_device_that_fails_ends_no_other() -> None:
    host = HEALTHY.copy()
    host.slow.add(recorded.bandwidth("mlx5_2"))
    result = run_check(BY_ID["backend.write-bandwidth"], host)
    assert result.status is AuditStatus.UNKNOWN
    assert len(result.findings) == 4


def test_the_server_of_a_loopback_ends_with_its_client(tmp_path: Path) -> None:
    """A stand-in for perftest: without an address it is the server, and never ends by itself."""
    stand_in = tmp_path / "ib_write_bw"
    stand_in.write_text(
        f'#!/bin/sh\nif [ "$2" ]; then echo "$2 done"; exit 0; fi\necho $$ > {tmp_path}/pid\nexec sleep 60\n'
    )
    stand_in.chmod(0o755)
    assert LiveHost().load(20.0, "sh", "-c", LOOPBACK, str(stand_in), "--ib-dev=a") == "127.0.0.1 done\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_load_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(Unreadable, match="no end within"):
        LiveHost().load(0.5, "sh", "-c", script)
    pid = int((tmp_path / "pid").read_text())
    stat = Path(f"/proc/{pid}/stat")
    wait_until(lambda: not stat.exists() or ") Z " in stat.read_text(), name="the end of the killed child")
