"""Parsers of versions: packages, libraries, firmware."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_machine import FIRMWARE, PACKAGES
from producers.audit.base import run_check
from producers.audit.host.base import Unreadable
from producers.audit.software.versions import CHECKS, firmware_parts, library_version, os_name, packages
from schemas.records import AuditStatus

BY_ID = {check.check_id: check for check in CHECKS}


def test_packages_that_matter() -> None:
    text = "libnccl2\t2.21.5-1+cuda12.4\tii \nbash\t5.2\tii \nslurm-wlm\t23.11\trc \nrdma-core\t50.0-2\tiF \n"
    assert packages(text) == {"libnccl2": ("2.21.5-1+cuda12.4", "ii"), "rdma-core": ("50.0-2", "iF")}


def test_libraries_by_file_name() -> None:
    assert library_version("libnccl.so.2.21.5") == ("libnccl", "2.21.5")
    assert library_version("libnccl.so.2") is None
    assert library_version("libz.so.1.3.1") is None


def test_firmware_that_waits_for_a_reset() -> None:
    text = json.dumps(
        {
            "info": {
                "pci/a": {"versions": {"running": {"fw.version": "1"}, "stored": {"fw.version": "2"}}},
                "pci/b": {"versions": {"running": {"fw.version": "1"}}},
                "pci/c": {"versions": {"fixed": {"fw.psid": "MT"}}},
            }
        }
    )
    assert [tuple(part) for part in firmware_parts(text)] == [
        ("pci/a", "fw.version", "1", "2"),
        ("pci/b", "fw.version", "1", ""),
        ("pci/c", "fw.psid", "MT", ""),
    ]


@pytest.mark.parametrize("name", ["fw", "fw.mgmt", "fw.undi", "fw.roce"])
def test_every_part_of_the_firmware_may_wait_for_a_reset(name: str) -> None:
    host = HEALTHY.copy()
    versions = {"running": {name: "219.0.0.0", "fw.psid": "1"}, "stored": {name: "220.0.0.0"}}
    host.commands[FIRMWARE] = json.dumps({"info": {"pci/a": {"driver": "bnxt_en", "versions": versions}}})
    result = run_check(BY_ID["software.nic-firmware"], host)
    assert result.status is AuditStatus.FAILED
    assert result.text == f"pci/a: runs {name} 219.0.0.0, stored is 220.0.0.0"


def test_a_kernel_without_devlink_has_no_firmware_to_read() -> None:
    host = HEALTHY.copy()

    def refuse(*_: str) -> str:
        raise Unreadable("devlink --json dev info: exit code 1, Failed to connect to devlink Netlink")

    host.run = refuse  # type: ignore[method-assign]
    result = run_check(BY_ID["software.nic-firmware"], host)
    assert (result.status, result.text) == (AuditStatus.SKIPPED, "this kernel has no devlink")


def test_the_name_of_the_system() -> None:
    assert os_name('ID=debian\nPRETTY_NAME="Debian GNU/Linux 13"') == "Debian GNU/Linux 13"
    with pytest.raises(ValueError, match="no PRETTY_NAME"):
        os_name("ID=debian")


def test_a_host_with_rpm() -> None:
    host = HEALTHY.copy()
    del host.commands[PACKAGES]
    query = ("rpm", "--query", "--all", "--queryformat=%{NAME}\t%{VERSION}-%{RELEASE}\tii\n")
    host.commands[query] = "libnccl\t2.21.5-1\tii\n"
    result = run_check(BY_ID["software.packages"], host)
    assert result.status is AuditStatus.PASSED
    assert [each.fact.name for each in result.findings if each.fact is not None] == ["package_libnccl"]


def test_a_package_on_hold_is_installed() -> None:
    host = HEALTHY.copy()
    host.commands[PACKAGES] = "libnccl2\t2.28.3-1\thi \nslurm-wlm\t23.11\tiU \n"
    result = run_check(BY_ID["software.packages"], host)
    assert result.text == "slurm-wlm: slurm-wlm 23.11 is in state iU, expected ii or hi"


@given(st.text(max_size=80))
def test_odd_text_ends_no_check(text: str) -> None:
    host = HEALTHY.copy()
    host.commands = dict.fromkeys(host.commands, text)
    for check in CHECKS:
        assert run_check(check, host).text.isprintable()
    library_version(text)
