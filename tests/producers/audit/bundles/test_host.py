"""Hosts of support bundles: sosreport, sysinfo-snapshot, nvidia-bug-report; no command runs for them."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path

import pytest

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import Result, run_check
from producers.audit.bundles.host import MAX_FILE_BYTES, BadBundle, open_bundle
from producers.audit.checks import CHECKS
from producers.audit.host.base import NotRecorded, Unreadable
from schemas.records import AuditStatus

PASSED, FAILED, SKIPPED = AuditStatus.PASSED, AuditStatus.FAILED, AuditStatus.SKIPPED
XID = "NVRM: Xid (PCI:0000:19:00): 79, pid=812, GPU has fallen off the bus."
RULE = "_" * 44
REPORT = f"""
{RULE}

Start of NVIDIA bug report log file.  Please include this file.

{RULE}

*** /proc/sys/kernel/hostname
*** ls: -rw-r--r-- 1 root root 0 2026-11-01 10:00:00 /proc/sys/kernel/hostname
gpu7

{RULE}

*** /proc/pci does not exist

{RULE}

*** /proc/driver/nvidia/./version
*** ls: -r--r--r-- 1 root root 0 2026-11-01 10:00:00 /proc/driver/nvidia/./version
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06

{RULE}

dmesg:

[    1.500000] Linux version 6.8.0
[  100.000000] {XID}
"""


@pytest.fixture(autouse=True)
def no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a command was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def audited(path: Path) -> dict[str, Result]:
    host = open_bundle(path)
    return {check.check_id: run_check(check, host) for check in CHECKS.values() if not check.active}


FORMS = {
    "seconds": f"[  100.000000] {XID}\n",
    "dates": f"[Sun Feb 23 16:24:18 2025] Linux\n[Sun Feb 23 16:25:58 2025] {XID}\n",
    "levels": f"kern  :warn  : [  100.000000] {XID}\n",
    "ISO": f"kern  :warn  : 2025-01-21T04:41:44,283302+00:00 {XID}\n",
    "journal": f"Jan 21 04:41:44 gpu7 sshd[4]: {XID}\nJan 21 04:41:45 gpu7 kernel: {XID}\n",
    "monotonic": f"[  100.000000] gpu7 kernel: {XID}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_log_of_any_form_is_read(tmp_path: Path, form: str) -> None:
    write(tmp_path, {"sos_commands/kernel/dmesg": FORMS[form]})
    result = run_check(CHECKS["kernel-log.xid"], open_bundle(tmp_path))
    assert result.status is FAILED
    (finding,) = result.findings
    assert finding.text.startswith("XID 79")
    assert finding.subject == "GPU 0000:19:00"


def test_checks_of_things_outside_the_bundle_are_skipped(tmp_path: Path) -> None:
    write(tmp_path / "sosreport-gpu7", {"sos_commands/kernel/dmesg": "[    1.000000] Linux version 6.8.0\n"})
    results = audited(tmp_path)
    assert {result.status for result in results.values()} == {PASSED, SKIPPED}
    assert results["kernel-log.nic"].status is PASSED
    assert results["node.memory"].text == "/proc/meminfo: not in the bundle"
    assert results["frontend.gateway"].text.endswith("not in the bundle")


def test_the_files_of_a_healthy_host_fail_no_check(tmp_path: Path) -> None:
    kept = ("/proc/", "/etc/", "/sys/class/nvme", "/sys/kernel/mm", "/sys/devices/system/cpu")
    write(tmp_path, {path: text for path, text in HEALTHY.files.items() if path.startswith(kept)})
    write(tmp_path, {"sos_commands/kernel/dmesg": HEALTHY.commands["dmesg", "--kernel"]})
    results = audited(tmp_path)
    assert [each for each, result in results.items() if result.status is FAILED] == []
    assert sum(result.status is PASSED for result in results.values()) > 30


def test_outputs_of_a_sosreport_stand_for_commands(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sos_commands/systemd/systemctl_list-units": "",
            "sos_commands/systemd/systemctl_list-units_--failed": (
                "  UNIT           LOAD   ACTIVE SUB    DESCRIPTION\n"
                "● slurmd.service loaded failed failed Slurm node daemon\n\n"
                "LOAD   = Reflects whether the unit definition was properly loaded.\n"
                "1 loaded units listed.\n"
            ),
            "sos_commands/kernel/sysctl_-a": (
                "kernel.numa_balancing = 1\nnet.ipv4.conf.eth0/1.rp_filter = 0\n"
            ),
            "sos_commands/ipmitool/ipmitool_sel_elist": (
                "   1 | 11/21/2026 | 11:00:00 | Memory #0x53 | Uncorrectable ECC | Asserted\n"
            ),
        },
    )
    host, results = open_bundle(tmp_path), audited(tmp_path)
    assert results["software.failed-units"].status is FAILED
    assert "slurmd.service" in results["software.failed-units"].text
    assert results["software.numa-balancing"].status is FAILED
    assert results["node.events"].status is FAILED
    assert host.read("/proc/sys/net/ipv4/conf/eth0.1/rp_filter") == "0"


def test_a_sysinfo_snapshot_is_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "commands_txt_output/sysctl_a": "kernel.numa_balancing = 1\n",
            "commands_txt_output/uname.txt": "Invoked Command: uname\nLinux\n",
            "journal": "[  100.000000] gpu7 kernel: mlx5_core 0000:17:00.0: device's health compromised\n",
        },
    )
    results = audited(tmp_path)
    assert results["kernel-log.nic"].text.startswith("0000:17:00.0: ")
    assert results["software.numa-balancing"].status is FAILED


@pytest.mark.parametrize("name", ["nvidia-bug-report.log", "nvidia-bug-report.log.gz"])
def test_a_bug_report_is_read(tmp_path: Path, name: str) -> None:
    content = REPORT.encode()
    write(tmp_path, {name: gzip.compress(content) if name.endswith(".gz") else content})
    for path in (tmp_path, tmp_path / name):
        host = open_bundle(path)
        assert host.name == "gpu7"
        assert host.read("/proc/driver/nvidia/version").endswith("580.65.06")
        assert run_check(CHECKS["kernel-log.xid"], host).status is FAILED


def test_other_folders_and_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"notes/a.txt": "none", "nvidia.tar": "none"})
    for path in (tmp_path, tmp_path / "nvidia.tar", tmp_path / "absent"):
        with pytest.raises(BadBundle, match="expected"):
            open_bundle(path)


def test_links_do_not_lead_out_of_the_bundle(tmp_path: Path) -> None:
    write(tmp_path, {"sos_commands/kernel/uname": "Linux\n", "etc/.keep": ""})
    (tmp_path / "etc" / "hosts").symlink_to("/etc/hosts")
    with pytest.raises(NotRecorded, match="out of the bundle"):
        open_bundle(tmp_path).read("/etc/hosts")


SMI = """
==============NVSMI LOG==============

Timestamp                                 : Sun Nov  1 10:00:00 2026
Driver Version                            : 580.65.06
CUDA Version                              : 13.0

Attached GPUs                             : 2
"""
SMI_GPU = """GPU 00000000:{bus}:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : {persistence}
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-{bus}
    VBIOS Version                         : 96.00.99.00.01
    Inforom Version
        Image Version                     : G520.0200.00.05
    GSP Firmware Version                  : 580.65.06
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 0 MiB
    Compute Mode                          : Default
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {uncorrectable}
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : {uncorrectable}
        Pending                           : {pending}
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 41 C
        GPU Slowdown Temp                 : N/A
    GPU Power Readings
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
    Max Clocks
        SM                                : 1980 MHz
"""
LSPCI = (
    "00:00.0 Host bridge [0600]: Intel Corporation Device [8086:09a2] (rev 20)\n"
    "19:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)\n"
    "3b:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)\n"
)


def test_gpus_of_a_bundle_are_read_from_nvidia_smi_and_lspci(tmp_path: Path) -> None:
    good = SMI_GPU.format(bus="19", persistence="Enabled", uncorrectable=0, pending="No")
    bad = SMI_GPU.format(bus="3B", persistence="Disabled", uncorrectable=2, pending="Yes")
    report = "".join(
        f"{RULE}\n\n{text}\n"
        for text in (
            "Start of NVIDIA bug report log file.",
            f"/usr/bin/lspci -nn\n\n{LSPCI}",
            f"/usr/bin/nvidia-smi --query\n\n{SMI}\n{good}\n{bad}",
        )
    )
    write(tmp_path, {"nvidia-bug-report.log": report})
    results = audited(tmp_path)
    failed = {each for each, result in results.items() if result.status is FAILED}
    assert failed == {"gpu.ecc-uncorrectable", "gpu.row-remap", "gpu.persistence"}
    for each in failed:
        assert [finding.subject for finding in results[each].findings if finding.status is FAILED] == [
            "GPU 1"
        ]
    assert {result.status for result in results.values()} == {PASSED, FAILED, SKIPPED}
    assert results["gpu.power-limit"].status is PASSED
    assert results["gpu.nvlinks"].text.endswith("not in the bundle")


def ports_of(**states: str) -> dict[str, str | bytes]:
    """Return the files of a sosreport with four like cards; a port has a state of its own if it is named."""
    names = [f"mlx5_{number}" for number in range(4)]
    ibstatus = "".join(
        f"Infiniband device '{name}' port 1 status:\n\tdefault gid:\t fe80::c470:bd03:cf:4964\n"
        f"\tbase lid:\t 0x30\n\tsm lid:\t\t 0x1\n\tstate:\t\t {states.get(name, '4: ACTIVE')}\n"
        f"\tphys state:\t {'3: Disabled' if 'DOWN' in states.get(name, '') else '5: LinkUp'}\n"
        f"\trate:\t\t {'200 Gb/sec (2X NDR)' if name == 'mlx5_3' else '400 Gb/sec (4X NDR)'}\n"
        f"\tlink_layer:\t InfiniBand\n\n"
        for name in names
    )
    devinfo = "".join(
        f"hca_id:\t{name}\n\ttransport:\t\t\tInfiniBand (0)\n"
        f"\tfw_ver:\t\t\t\t{'28.39.1002' if name == 'mlx5_1' else '28.43.2566'}\n"
        f"\tnode_guid:\t\t\tc470:bd03:00cf:496{index}\n\tboard_id:\t\t\tMT_0000000838\n"
        f"\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\n"
        for index, name in enumerate(names)
    )
    ibstat = "".join(f"CA '{name}'\n\tCA type: MT4129\n\tNumber of ports: 1\n" for name in names)
    return {
        "sos_commands/infiniband/ibstatus": ibstatus,
        "sos_commands/infiniband/ibv_devinfo_-v": devinfo,
        "sos_commands/infiniband/ibstat": ibstat,
    }


def test_rdma_ports_of_a_bundle_are_read_from_ibstatus_and_ibv_devinfo(tmp_path: Path) -> None:
    write(tmp_path, ports_of(mlx5_2="2: INIT"))
    results = audited(tmp_path)
    wrong = {
        each: [finding.subject for finding in result.findings if finding.status is FAILED]
        for each, result in results.items()
        if result.status is FAILED
    }
    assert wrong == {
        "backend.port-state": ["mlx5_2/1"],
        "backend.port-rate": ["mlx5_3/1"],
        "backend.like-cards": ["mlx5_1"],
    }
    assert results["backend.link-counters"].text.endswith("not in the bundle")


def test_a_dark_port_of_a_bundle_is_no_fault_and_hides_none(tmp_path: Path) -> None:
    write(tmp_path, ports_of(mlx5_0="1: DOWN", mlx5_2="2: INIT"))
    findings = audited(tmp_path)["backend.port-state"].findings
    statuses = {finding.subject: finding.status for finding in findings}
    assert statuses == {"mlx5_0/1": SKIPPED, "mlx5_1/1": PASSED, "mlx5_2/1": FAILED, "mlx5_3/1": PASSED}


def outside(folder: Path) -> Path:
    """Make a folder with a host's files and a log beside the bundle; return it."""
    write(folder / "outside", {"proc/sys/kernel/hostname": "outside", "nvidia-bug-report.log": REPORT})
    return folder / "outside"


@pytest.mark.parametrize("name", ["host", "nvidia-bug-report.log"])
def test_a_link_in_a_bundle_opens_no_other_host(tmp_path: Path, name: str) -> None:
    other, bundle = outside(tmp_path), tmp_path / "bundle"
    bundle.mkdir()
    (bundle / name).symlink_to(other / name if name.endswith("log") else other)
    with pytest.raises(BadBundle, match="expected an unpacked sosreport"):
        open_bundle(bundle)


def test_links_that_loop_or_lead_out_are_not_in_the_bundle(tmp_path: Path) -> None:
    other, bundle = outside(tmp_path), tmp_path / "bundle"
    write(bundle, {"sos_commands/host/hostname": "inside"})
    (bundle / "etc").symlink_to("etc")
    (bundle / "proc").symlink_to(other / "proc")
    (bundle / "sos_commands/kernel").symlink_to(other)
    assert open_bundle(bundle).name == "bundle"
    assert {result.status for result in audited(bundle).values()} <= {PASSED, SKIPPED}


def test_a_pipe_or_a_damaged_archive_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nvidia-bug-report.log")
    with pytest.raises(BadBundle, match="expected an unpacked sosreport"):
        open_bundle(tmp_path)
    packed = bytearray(gzip.compress(bytes(range(256)) * 100))
    packed[20:60] = b"\xff" * 40
    (tmp_path / "nvidia-bug-report.log.gz").write_bytes(packed)
    with pytest.raises(BadBundle, match="while decompressing"):
        open_bundle(tmp_path)


def test_a_file_above_the_limit_is_not_read_in_full(tmp_path: Path) -> None:
    write(tmp_path, {"sos_commands/kernel/dmesg": "", "proc/meminfo": ""})
    os.truncate(tmp_path / "proc/meminfo", MAX_FILE_BYTES + 1)
    with pytest.raises(Unreadable, match="proc/meminfo: expected at most 256 MiB"):
        open_bundle(tmp_path).read("/proc/meminfo")
