"""Unknown lines of the kernel log: masks, the list of known lines, settings, bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import run_check
from producers.audit.logs.unknown_lines import (
    CHECKS,
    LOG,
    MAX_KINDS,
    Unknown,
    masked,
    unknown_lines,
)
from producers.audit.settings import CheckSettings
from schemas.records import AuditSeverity, AuditStatus

(CHECK,) = CHECKS
KNOWN = (
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "ERST: Error Record Serialization Table (ERST) support is initialized.",
    "Spectre V2 : Spectre v2 mitigation leaves CPU vulnerable to RETBleed attacks, data leaks possible!",
    "hrtimer: interrupt took 21042 ns",
    "mlx5_core 0000:17:00.0: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x8 link)",
    "python[812]: segfault at 0 ip 00007f2a error 4 in libtorch_cpu.so[7f29+a000]",
    "NVRM: Xid (PCI:0000:19:00): 79, pid=812, name=python, Ch 00000008",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s!",
    "? srso_alias_return_thunk+0x5/0xfbef5",
    " __alloc_pages+0x1c0/0x340",
    "lowmem_reserve[]: 0 3018 24090 24090 24090",
    "Node 0 hugepages_total=0 hugepages_free=0 hugepages_surp=0 hugepages_size=1048576kB",
)
UNKNOWN = (
    "nvme nvme0: I/O 12 QID 3 timeout, aborting",
    "BTRFS error (device sda1): bdev /dev/sda1 errs: wr 1, rd 0, flush 0, corrupt 0, gen 0",
    "thunderbolt 0000:05:00.0: failed to send driver ready to ICM",
    "WARNING: CPU: 3 PID: 812 at kernel/workqueue.c:1728 __queue_work+0x1c0/0x340",
    "vfio-pci 0000:17:00.0: not ready 65535ms after FLR; giving up",
)


def test_lines_that_differ_in_numbers_are_one_kind() -> None:
    assert masked("nvme nvme0: I/O 12 QID 3 timeout") == masked("nvme nvme7: I/O 911 QID 14 timeout")
    assert masked("dev 0000:17:00.0 at 0xffff8881 took 1.25 ms") == "dev PCI at # took # ms"
    assert masked("address 00007f2a3c4d is bad") == "address # is bad"
    found, beyond = unknown_lines("nvme nvme0: timeout 1\nother\nnvme nvme1: timeout 2\n\n")
    assert found == [
        Unknown("nvme nvme#: timeout #", "nvme nvme0: timeout 1", 2),
        Unknown("other", "other", 1),
    ]
    assert beyond == 0


@pytest.mark.parametrize("line", KNOWN)
def test_known_lines_and_those_of_other_checks_are_left_out(line: str) -> None:
    assert unknown_lines(line) == ([], 0)


@pytest.mark.parametrize("line", UNKNOWN)
def test_other_lines_are_found(line: str) -> None:
    assert [each.example for each in unknown_lines(line)[0]] == [line]


def test_settings_add_patterns() -> None:
    host = HEALTHY.copy()
    host.commands[LOG] += "".join(f"{line}\n" for line in UNKNOWN)
    result = run_check(CHECK, host)
    assert (result.status, len(result.findings)) == (AuditStatus.FAILED, len(UNKNOWN))
    assert CHECK.severity is AuditSeverity.WARNING
    host.settings = CheckSettings(
        known_lines=("^nvme nvme0: I/O", "^BTRFS error", "thunderbolt", "^(WARNING: |vfio-pci)")
    )
    assert run_check(CHECK, host).status is AuditStatus.PASSED
    with pytest.raises(ValidationError, match="expected a regular expression"):
        CheckSettings(known_lines=("(",))


def test_many_kinds_are_counted_and_few_are_listed() -> None:
    letters = [f"{a}{b}" for a in "abcdefghijklmnopqrst" for b in "abcdefghijklmnopqrst"]
    log = "".join(f"odd {name} line\n" for name in letters)
    found, beyond = unknown_lines(log)
    assert (len(found), beyond) == (MAX_KINDS, len(letters) - MAX_KINDS)
    host = HEALTHY.copy()
    host.commands[LOG] = log
    findings = run_check(CHECK, host).findings
    assert len(findings) == 33
    assert findings[-1].text == f"{len(letters) - 32} lines of {MAX_KINDS - 32} or more further kinds"


@given(st.text(max_size=400))
def test_any_text_is_read(log: str) -> None:
    found, beyond = unknown_lines(log)
    assert sum(each.lines for each in found) + beyond <= len(log.splitlines())
