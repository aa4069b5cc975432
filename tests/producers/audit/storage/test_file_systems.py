"""Software RAID of all kinds, and file systems that are read-only by design or by an error."""

from __future__ import annotations

import pytest

from fabrictime.testbed.audit.faults import logged
from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_services import TIMED
from producers.audit.base import run_check
from producers.audit.storage.file_systems import CHECKS, arrays
from schemas.records import AuditStatus

BY_ID = {check.check_id: check for check in CHECKS}
CONTAINER = """Personalities : [raid1]
md126 : active raid1 sdb[1] sda[0]
      5201 blocks super external:/md127/0 [2/2] [{}]

md127 : inactive sdb[1](S) sda[0](S)
      10402 blocks super external:{}

unused devices: <none>
"""


@pytest.mark.parametrize("metadata", ["imsm", "ddf"])
def test_a_container_is_never_active(metadata: str) -> None:
    host = HEALTHY.copy()
    for members, status in (("UU", AuditStatus.PASSED), ("U_", AuditStatus.FAILED)):
        host.files["/proc/mdstat"] = CONTAINER.format(members, metadata)
        assert run_check(BY_ID["storage.raid"], host).status is status


@pytest.mark.parametrize(
    ("text", "state", "shown"),
    [
        (
            "md0 : active raid6 sdd[3] sdc[2] sdb[1] sda[0]\n 7 blocks level 6 [4/4] [UUUU]\n",
            "PASSED",
            "UUUU",
        ),
        (
            "md0 : active (auto-read-only) raid1 sdb[1] sda[0]\n 7 blocks super 1.2 [2/2] [UU]\n",
            "PASSED",
            "UU",
        ),
        ("md0 : active linear sdb[1] sda[0]\n 7 blocks super 1.2 0k rounding\n", "PASSED", "active"),
        ("md0 : broken raid0 sdb[1] sda[0]\n 7 blocks super 1.2 512k chunks\n", "FAILED", "broken"),
        ("md0 : inactive sdb[0](S)\n 7 blocks super 1.2\n", "FAILED", "inactive"),
        ("md0 : inactive sdb[0]\n 7 blocks super external:/md127/0\n", "FAILED", "inactive"),
        (
            "md0 : active raid5 sdd[4] sdc[2] sda[0]\n 7 blocks super 1.2 [3/2] [U_U]\n"
            "      [==>..................]  recovery = 12.6% (1/8) finish=2.1min speed=1K/sec\n",
            "FAILED",
            "active, members [U_U], recovery = 12.6%",
        ),
        (
            "md0 : active raid1 sdb[1] sda[0]\n 7 blocks super 1.2 [2/2] [UU]\n      resync=PENDING\n"
            "      bitmap: 0/1 pages [0KB], 65536KB chunk\n",
            "PASSED",
            "resync=PENDING",
        ),
    ],
)
def test_states_of_arrays(text: str, state: str, shown: str) -> None:
    host = HEALTHY.copy()
    host.files["/proc/mdstat"] = text
    result = run_check(BY_ID["storage.raid"], host)
    assert (result.status.name, shown in result.text) == (state, True), result.text


def test_members_are_not_taken_from_a_bitmap_or_a_progress_bar() -> None:
    text = (
        "md0 : active raid1 sdb[1] sda[0]\n 7 blocks super 1.2 [2/2] [UU]\n"
        "      [=====>...]  check = 25.0% (1/4) finish=1.0min\n      bitmap: 1/2 pages [4KB], 64KB chunk\n"
    )
    assert (arrays(text)["md0"].members, arrays(text)["md0"].progress) == ("UU", "check = 25.0%")


IMAGE = "/dev/dm-0 / ext2 ro 0 0\n/dev/sda1 /var ext4 rw 0 0\n/dev/sda8 /usr/share/oem ext4 ro 0 0\n"


def test_an_image_without_fstab_is_read_only_by_design() -> None:
    host = HEALTHY.copy()
    del host.files["/etc/fstab"]
    host.files["/proc/mounts"] = IMAGE
    assert run_check(BY_ID["storage.read-only"], host).status is AuditStatus.PASSED
    host.denied.add(TIMED[0])
    assert run_check(BY_ID["storage.read-only"], host).status is AuditStatus.UNKNOWN


@pytest.mark.parametrize(
    "line",
    [
        "EXT4-fs (sda8): Remounting filesystem read-only",
        "BTRFS info (device sda8: state E): forced readonly",
        "F2FS-fs (sda8): Stop checkpoint, switch to readonly",
    ],
)
def test_the_kernel_log_names_a_file_system_that_fell_back(line: str) -> None:
    host = HEALTHY.copy()
    del host.files["/etc/fstab"]
    host.files["/proc/mounts"] = IMAGE
    logged(line)(host)
    result = run_check(BY_ID["storage.read-only"], host)
    assert (
        result.text == "/usr/share/oem: /dev/sda8 became read-only after an error, as the kernel log states"
    )


def test_a_mount_option_names_a_file_system_that_fell_back() -> None:
    host = HEALTHY.copy()
    host.files["/proc/mounts"] = "/dev/sda1 / ext4 rw 0 0\n/dev/sdb1 /local ext4 rw,emergency_ro 0 0\n"
    assert run_check(BY_ID["storage.read-only"], host).status is AuditStatus.FAILED
