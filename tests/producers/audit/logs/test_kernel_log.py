"""Checks of the kernel log on recorded hosts: real lines of many drivers, and the checks that they fail."""

from __future__ import annotations

import pytest

from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from fabrictime.testbed.audit.recorded_services import TIMED, UPTIME_S
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.logs.kernel_log import LOG
from producers.audit.logs.unknown_lines import LOG as WARNINGS
from schemas.records import AuditStatus

NIC, AMD, XID = "kernel-log.nic", "kernel-log.amd-gpu", "kernel-log.xid"
LIBRARY = "kernel-log.collective-library"
MACHINE, MODULE = "kernel-log.machine", "backend.module-events"
CARD, MLX5 = "0000:17:00.0", "mlx5_core 0000:17:00.0"
GPU, AMDGPU = "0000:c1:00.0", "amdgpu 0000:c1:00.0: amdgpu"
GPU_DRIVER = "amdgpu 0000:c1:00.0:"
LEAK = "Will cause a leak of a command resource"
PASSED, FAILED, UNKNOWN = AuditStatus.PASSED, AuditStatus.FAILED, AuditStatus.UNKNOWN


def host_of(*lines: str) -> RecordedHost:
    host = HEALTHY.copy()
    for index, line in enumerate(lines):
        host.commands[TIMED] += f"[{UPTIME_S - 60 + index / 1000:14.6f}] {line}\n"
        host.commands[WARNINGS] += f"{line}\n"
    return host


AER_FATAL = (
    "nvme 0000:34:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data Link Layer, (Receiver ID)"
)
DIMM = "CPU_SrcID#0_MC#0_Chan#1_DIMM#0"
FAULTS = [
    (MACHINE, "", "kernel BUG at mm/slub.c:4100!"),
    (MACHINE, "", "Internal error: Oops: 0000000096000004 [#1] SMP"),
    (MACHINE, "", "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3"),
    (MACHINE, DIMM, f"EDAC MC0: 1 UE memory read error on {DIMM} (channel:0 slot:0 page:0x12)"),
    (MACHINE, "dm-0", "Buffer I/O error on dev dm-0, logical block 0, async page read"),
    (MACHINE, "0000:34:00.0", AER_FATAL),
    (MACHINE, "0000:89:02.0", "pcieport 0000:89:02.0: AER: device recovery failed"),
    (
        LIBRARY,
        "ray::Worker",
        "ray::Worker[91]: segfault at 8 ip 00007f2a sp 00007f29 error 4 in libnccl.so.2[7f2a+8c0]",
    ),
    (
        LIBRARY,
        "test",
        "traps: test[7] general protection fault ip:7f1 sp:7f1 error:0 in librccl.so.1.0.60200[7f1+9f]",
    ),
    (
        LIBRARY,
        "python",
        "traps: python[7] trap invalid opcode ip:7f11 sp:7f10 error:0 in libnccl.so.2[7f1+9f]",
    ),
    (
        LIBRARY,
        "python",
        "python[7]: unhandled exception: DABT (lower EL), ESR 0x92000006 in libnccl-net.so[24,4000+5a]",
    ),
    (NIC, CARD, f"{MLX5}: poll_health:939:(pid 0): device's health compromised"),
    (NIC, "ens1np0", f"{MLX5} ens1np0: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5010 ms"),
    (NIC, "eth0", "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out"),
    (NIC, CARD, f"{MLX5}: wait_func:1131:(pid 1): ACCESS_REG(0x805) timeout. {LEAK}"),
    (NIC, CARD, f"{MLX5}: cb_timeout_handler:879:(pid 3): cmd[2]: CREATE_CQ(0x400) Async, timeout. {LEAK}"),
    (NIC, CARD, f"{MLX5}: mlx5_health_try_recover:335:(pid 1): handling bad device here"),
    (NIC, CARD, f"{MLX5}: print_health_info:424:(pid 0): synd 0x1: firmware internal error"),
    (NIC, CARD, f"{MLX5}: temp_warn:171:(pid 0): High temperature on sensors with bit set 0 1"),
    (NIC, "eth5", "bnxt_en 0000:a8:00.0 eth5: TX timeout detected, starting reset task!"),
    (NIC, "eth5", "bnxt_en 0000:a8:00.0 eth5: Firmware not responding, status: 0x8000"),
    (
        NIC,
        "0000:31:00.0",
        "ice 0000:31:00.0: Firmware recovery mode detected. Limiting functionality. Refer to the guide",
    ),
    (NIC, "0000:31:00.0", "ice 0000:31:00.0: Rebuild failed, unload and reload driver"),
    (
        NIC,
        "eno1",
        "i40e 0000:19:00.0 eno1: tx_timeout recovery unsuccessful, device is in non-recoverable state.",
    ),
    (NIC, "0000:31:00.1", "irdma 0000:31:00.1: AEQ critical error"),
    (NIC, "eth1", "ena 0000:00:06.0 eth1: Keep alive watchdog timeout."),
    (
        NIC,
        "rdmap0",
        "infiniband rdmap0: The device didn't send any completion for admin cmd CREATE_QP(1) status 0",
    ),
    (NIC, "0000:24:00.0", "ionic 0000:24:00.0: FW heartbeat stalled at 7243"),
    (NIC, "39d4:00:02.0", "mana 39d4:00:02.0: HWC: Request timed out!"),
    (NIC, "0000:00:04.0", "gve 0000:00:04.0: AQ commands timed out, need to reset AQ"),
    (AMD, GPU, f"{AMDGPU}: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"),
    (AMD, GPU, f"{AMDGPU}: GPU reset begin!"),
    (AMD, GPU, f"{AMDGPU}: ring sdma0 timeout"),
    (
        AMD,
        "amdgpu",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=51, emitted seq=53",
    ),
    (AMD, GPU, f"{AMDGPU}: socket: 0, die: 0, 2 new uncorrectable hardware errors detected in umc block"),
    (AMD, GPU, f"{AMDGPU}: XGMI PCS DataLossErr detected"),
    (AMD, GPU, f"{AMDGPU}: MES failed to respond to msg=REMOVE_QUEUE"),
    (MACHINE, "", "{1}[Hardware Error]: event severity: fatal"),
    (MACHINE, "", "{7}[Hardware Error]: event severity: recoverable"),
    (MACHINE, "", "BERT: [Hardware Error]: event severity: fatal"),
    (MACHINE, "", "SError Interrupt on CPU3, code 0x00000000be000411 -- SError"),
    (
        MODULE,
        CARD,
        f"{MLX5}: mlx5_pcie_event:301:(pid 7): Detected insufficient power on the PCIe slot (25W).",
    ),
    (MODULE, CARD, f"{MLX5}: Port module event[error]: module 0, Cable error, Bus stuck"),
    (NIC, "eth0", "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue timed out"),
    (NIC, "0000:e2:00.1", "ice: probe of 0000:e2:00.1 failed with error -5"),
    (NIC, "ice.roce.1", "irdma.gen_2 ice.roce.1: probe with driver irdma.gen_2 failed with error -110"),
    (NIC, "0000:60:00.0", "ice 0000:60:00.0: IRDMA hardware initialization FAILED init_state=4 status=-110"),
    (NIC, "eno2", "ixgbe 0000:01:00.0 eno2: Detected Tx Unit Hang"),
    (
        AMD,
        GPU,
        f"{GPU_DRIVER} [drm:amdgpu_ring_test_helper [amdgpu]] *ERROR* ring kiq_2.1.0 test failed (-110)",
    ),
    (
        XID,
        "0000:01:00.0",
        "nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible",
    ),
    (MACHINE, "", "Memory failure: 0x1234567: recovery action for reserved kernel page: Ignored"),
    (MACHINE, "0000:00:01.0", "pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000"),
    (AMD, GPU, f"{GPU_DRIVER} {{14}}poison is consumed by client 12, kick off gpu reset flow"),
    (AMD, GPU, f"{GPU_DRIVER} {{15}}Poison is created"),
    (AMD, GPU, f"{AMDGPU}: Saved bad pages 176 reaches threshold value 128"),
    (AMD, "amdgpu", "[drm:amdgpu_device_init [amdgpu]] *ERROR* hw_init of IP block <psp> failed -22"),
    (MACHINE, "", "mce: Uncorrected hardware memory error in user-access at af34214200"),
    (
        NIC,
        CARD,
        f"{MLX5}: mlx5_pci_err_detected Device state = 1 pci_status: 0. Exit, result = 3, need reset",
    ),
    (MACHINE, "sda1", "EXT4-fs (sda1): Remounting filesystem read-only"),
    (MACHINE, "nvme0n1p2", "XFS (nvme0n1p2): Log I/O Error (0x2) detected. Shutting down filesystem"),
    (XID, "0000:38:00.0", "NVRM: GPU 0000:38:00.0: RmInitAdapter failed! (0x62:0x40:2477)"),
    (XID, "GPU 0000:38:00", "NVRM: GPU 0000:38:00.0: GPU has fallen off the bus."),
]


@pytest.mark.parametrize(("check_id", "subject", "line"), FAULTS)
def test_a_real_line_fails_its_check_with_its_device(check_id: str, subject: str, line: str) -> None:
    host = host_of(line)
    result = run_check(CHECKS[check_id], host)
    failures = [finding.subject for finding in result.findings if finding.status is FAILED]
    assert failures == [subject], result.text
    assert run_check(CHECKS["kernel-log.unknown"], host).status is PASSED


HARMLESS = [
    (MACHINE, f"EDAC MC0: 1 CE memory read error on {DIMM} (channel:0 slot:0 page:0x12345 offset:0x0)"),
    (MACHINE, "ipmi_si: Unable to find any System Interface(s)"),
    (
        XID,
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 30",
    ),
    (AMD, f"{AMDGPU}: [Hardware error] aca entry[00].STATUS=0x000000000000000f"),
    (AMD, f"{GPU_DRIVER} {{1}}[Hardware Error]: ACA[01/01].STATUS=0x0000000000000000"),
    (AMD, "[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Failed to initialize parser -125!"),
    (MODULE, "mlx5_core 0000:63:00.1: Port module event: module 1, Cable unplugged"),
    (MACHINE, "pcieport 0000:00:01.0: AER: Corrected error message received from 0000:01:00.0"),
    (
        MACHINE,
        "mlx5_core 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    ),
    (MACHINE, "Memory failure: 0x1234567: recovery action for dirty LRU page: Recovered"),
    (
        MODULE,
        "mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W).",
    ),
    (NIC, f"{MLX5}: cmd[2]: CREATE_CQ(0x400) Async, recovered after timeout"),
    (AMD, f"{AMDGPU}: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32777)"),
    (AMD, f"{AMDGPU}: 3 correctable hardware errors detected in total in umc block"),
    (AMD, "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, but soft recovered"),
    (MACHINE, "{3}[Hardware Error]: event severity: corrected"),
    (MACHINE, "{3}[Hardware Error]:   error_type: 2, single-bit ECC"),
    (
        XID,
        "NVRM:      0    103  GSP_RM_ALLOC          0x0000000000002081 0x0000000000000004 0x00062ed1a6bd61fa",
    ),
    (XID, "NVRM: GPU4 RPC history (CPU -> GSP):"),
    (XID, "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30)."),
]


@pytest.mark.parametrize(("check_id", "line"), HARMLESS)
def test_a_line_of_healthy_hosts_fails_no_check(check_id: str, line: str) -> None:
    host = host_of(line)
    for each in (check_id, "kernel-log.unknown"):
        result = run_check(CHECKS[each], host)
        assert result.status is PASSED, result.text


def test_a_gpu_that_was_reset_is_over() -> None:
    begin, end = (
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!",
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset(2) succeeded!",
    )
    result = run_check(CHECKS[AMD], host_of(begin, end))
    assert result.status is PASSED
    assert "over: amdgpu: GPU reset(2) succeeded!" in result.text


def test_a_ring_without_a_device_is_over_when_its_driver_was_reset() -> None:
    ring = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=698, emitted seq=700"
    assert run_check(CHECKS[AMD], host_of(ring)).status is FAILED
    assert run_check(CHECKS[AMD], host_of(ring, f"{AMDGPU}: GPU reset(2) succeeded!")).status is PASSED


def test_an_xid_that_no_catalogue_has_is_unknown() -> None:
    result = run_check(CHECKS[XID], host_of("NVRM: Xid (PCI:0000:38:00): 999, something new"))
    assert result.status is UNKNOWN
    assert "not in the catalogue" in result.text


def test_a_processor_without_machine_check_interrupts_names_the_check_that_covers_it() -> None:
    host = HEALTHY.copy()
    host.files["/proc/interrupts"] = " 11:   12   34   GICv3  27 Level     arch_timer\n"
    result = run_check(CHECKS["node.machine-checks"], host)
    assert result.status is AuditStatus.SKIPPED
    assert "kernel-log.machine" in result.text


def test_all_checks_read_the_same_output() -> None:
    assert LOG == TIMED


def test_a_fatal_pcie_error_ends_as_its_port_recovers() -> None:
    host = host_of(AER_FATAL, "pcieport 0000:30:03.0: AER: device recovery successful")
    assert run_check(CHECKS[MACHINE], host).status is PASSED


def test_correctable_memory_errors_fail_by_their_rate() -> None:
    host = host_of(*[f"EDAC MC0: 1 CE memory read error on {DIMM} (channel:0 page:0x1)"] * 100)
    result = run_check(CHECKS[MACHINE], host)
    assert [finding.subject for finding in result.findings] == [DIMM]
    assert result.status is FAILED
