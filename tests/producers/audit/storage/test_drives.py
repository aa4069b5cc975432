"""Drives and shared mounts: odd SMART data, stale handles, missing rights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_machine import SMART
from producers.audit.base import run_check
from producers.audit.host.base import Unreadable
from producers.audit.host.live import LiveHost
from producers.audit.storage.drives import CHECKS, TRIAL_FILE, smart
from schemas.records import AuditStatus

BY_ID = {check.check_id: check for check in CHECKS}


def test_smart_data_is_a_table() -> None:
    assert smart('{"smart_status": {"passed": true}}') == {"smart_status": {"passed": True}}
    for text in ("", "[]", "smartctl 7.4"):
        with pytest.raises(ValueError):
            smart(text)


@given(st.recursive(st.none() | st.booleans() | st.integers(), lambda each: st.lists(each, max_size=3)))
def test_odd_smart_data_is_never_passed(odd: object) -> None:
    host = HEALTHY.copy()
    host.commands[SMART] = json.dumps(
        {"smart_status": odd, "nvme_smart_health_information_log": {"critical_warning": odd}}
    )
    for name in ("smart", "nvme-wear"):
        assert run_check(BY_ID[f"storage.{name}"], host).status is not AuditStatus.PASSED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("stat --file-system /data: exit code 1, stat: Stale file handle", AuditStatus.FAILED),
        ("stat --file-system /data: no end within 5 s", AuditStatus.FAILED),
        ("stat: Permission denied", AuditStatus.UNKNOWN),
    ],
)
def test_a_server_that_does_not_answer_fails_and_a_missing_right_is_unknown(
    error: str, status: AuditStatus
) -> None:
    host = HEALTHY.copy()

    def refuse(*_: str) -> str:
        raise Unreadable(error)

    host.run = refuse  # type: ignore[method-assign]
    result = run_check(BY_ID["storage.shared-mounts"], host)
    assert result.status is status
    assert error in result.text


def test_a_trial_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    """A user of the shared folder may have put a link there."""
    kept, folder = tmp_path / "kept", tmp_path / "shared"
    kept.write_text("kept")
    folder.mkdir()
    host = LiveHost()
    name = folder / f"{TRIAL_FILE}-{host.read('/proc/sys/kernel/hostname')}"
    name.symlink_to(kept)
    host.read = {  # type: ignore[method-assign]
        "/proc/mounts": f"nfs1:/a {folder} nfs4 rw 0 0",
        "/proc/sys/kernel/hostname": host.read("/proc/sys/kernel/hostname"),
    }.__getitem__
    assert run_check(BY_ID["storage.shared-writes"], host).status is AuditStatus.PASSED
    assert kept.read_text() == "kept"
    assert not list(folder.iterdir())


def test_a_drive_that_cannot_be_read_hides_no_other() -> None:
    host = HEALTHY.copy()
    host.files["/sys/block/sda/size"] = "900"
    host.commands["smartctl", "--json", "--all", "/dev/sda"] = json.dumps({"smart_status": {"passed": False}})
    host.commands[SMART] = "no table"
    result = run_check(BY_ID["storage.smart"], host)
    assert (result.status, result.text) == (AuditStatus.FAILED, "sda: the drive predicts its failure")


def test_paths_of_a_drive_and_drives_without_a_medium_are_left_out() -> None:
    host = HEALTHY.copy()
    host.files |= {"/sys/block/nvme0c1n1/size": "900", "/sys/block/sdb/size": "0"}
    for name in ("smart", "nvme-wear", "nvme-drives"):
        assert run_check(BY_ID[f"storage.{name}"], host).status is AuditStatus.PASSED


def test_a_drive_of_a_cloud_has_no_spare_part() -> None:
    host = HEALTHY.copy()
    spare = {"available_spare": 0, "available_spare_threshold": 0, "percentage_used": 0}
    log = {"critical_warning": 0, "media_errors": 0, **spare}
    host.commands[SMART] = json.dumps({"nvme_smart_health_information_log": log})
    assert run_check(BY_ID["storage.nvme-wear"], host).status is AuditStatus.PASSED
