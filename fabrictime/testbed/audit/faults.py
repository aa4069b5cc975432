"""Faults to plant in a recorded host, each with the audit check that must find it."""

from __future__ import annotations

from collections.abc import Callable

from fabrictime.testbed.audit.faults_active import ACTIVE_FAULTS
from fabrictime.testbed.audit.faults_gpu import GPU_FAULTS
from fabrictime.testbed.audit.faults_machine import MACHINE_FAULTS
from fabrictime.testbed.audit.recorded import NO_GID, UNITS, RecordedHost, bridge
from fabrictime.testbed.audit.recorded_services import TIMED, UPTIME_S
from producers.audit.logs.unknown_lines import LOG

Plant = Callable[[RecordedHost], None]
PORT = "/sys/class/infiniband/mlx5_{}/ports/1"
NIC = "/sys/bus/pci/devices/0000:17:00.0"


def text(path: str, content: str | bytes) -> Plant:
    """Return a fault that replaces the content of a file."""
    return lambda host: host.files.__setitem__(path, content)


def instead(path: str, old: str, new: str) -> Plant:
    """Return a fault that replaces the part `old` of a file's content by `new`."""

    def plant(host: RecordedHost) -> None:
        content = host.files[path]
        if not isinstance(content, str) or old not in content:
            raise ValueError(f"{path}: no {old!r} in the recorded host")
        host.files[path] = content.replace(old, new)

    return plant


def gone(path: str) -> Plant:
    """Return a fault that removes a file."""

    def plant(host: RecordedHost) -> None:
        del host.files[path]

    return plant


def grown(path: str, content: str) -> Plant:
    """Return a fault that changes a counter's file to `content` between two readings."""
    return lambda host: host.later.__setitem__(path, content)


def logged(line: str, times: int = 1, apart_s: float = 0.0) -> Plant:
    """Return a fault that adds a line to the kernel log `times` times, `apart_s` apart, last a minute ago."""

    def plant(host: RecordedHost) -> None:
        for number in range(times):
            at_s = UPTIME_S - 60 - apart_s * (times - 1 - number)
            host.commands[TIMED] += f"[{at_s:12.6f}] {line}\n"

    return plant


def warned(line: str) -> Plant:
    """Return a fault that adds a line to the warnings in the kernel log."""
    return lambda host: host.commands.__setitem__(LOG, host.commands[LOG] + f"{line}\n")


def _full(host: RecordedHost) -> None:
    host.spaces["/"] = (10**12, 10**10, 10**6, 9 * 10**5)


def _no_inodes(host: RecordedHost) -> None:
    host.spaces["/"] = (10**12, 5 * 10**11, 10**6, 10**3)


def _unsynchronised(host: RecordedHost) -> None:
    host.status = 0x40
    del host.commands["chronyc", "-c", "tracking"]


def _failed_unit(host: RecordedHost) -> None:
    host.commands[UNITS] = "slurmd.service loaded failed failed Slurm node daemon\n"


def _no_roce_v2(host: RecordedHost) -> None:
    host.files |= {PORT.format(0) + f"/gids/{index}": NO_GID for index in (1, 3)}


LEAK = "Will cause a leak of a command resource"
AMD = "amdgpu 0000:c1:00.0: amdgpu:"
MLX5 = "mlx5_core 0000:17:00.0:"
XID = "NVRM: Xid (PCI:0000:19:00): {}, pid=812, name=python, Ch 00000008"
FAULTS: dict[str, tuple[str, Plant]] = {
    **ACTIVE_FAULTS,
    **GPU_FAULTS,
    **MACHINE_FAULTS,
    "oops": ("software.kernel-taint", text("/proc/sys/kernel/tainted", "128")),
    "machine check taint": ("software.kernel-taint", text("/proc/sys/kernel/tainted", "16")),
    "soft lockup taint": ("software.kernel-taint", text("/proc/sys/kernel/tainted", "16384")),
    "small memlock": ("software.memlock", instead("/proc/640/limits", "unlimited", "67108864 ")),
    "failed unit": ("software.failed-units", _failed_unit),
    "pending reboot": ("software.reboot-required", text("/run/reboot-required", "*** restart ***")),
    "huge pages": (
        "software.huge-pages",
        text("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never"),
    ),
    "NUMA balancing": ("software.numa-balancing", text("/proc/sys/kernel/numa_balancing", "1")),
    "many threads": ("software.table-space", text("/proc/loadavg", "3.10 2.90 2.80 4/4000000 81220")),
    "many files": ("software.table-space", text("/proc/sys/fs/file-nr", "9000000\t0\t9223372")),
    "full conntrack": (
        "software.conntrack",
        text("/proc/sys/net/netfilter/nf_conntrack_count", "260000"),
    ),
    "no peermem": ("software.gpu-direct", instead("/proc/modules", "nvidia_peermem 16384", "nfs 16384")),
    "no memory": ("node.memory", instead("/proc/meminfo", "2050000000", "50000")),
    "swap in use": ("node.memory", instead("/proc/meminfo", "SwapTotal:      0", "SwapTotal:      90000000")),
    "corrupted page": ("node.memory", instead("/proc/meminfo", "Corrupted:     0", "Corrupted:     4")),
    "OOM": ("node.oom", text("/proc/vmstat", "oom_kill 2")),
    "ECC": ("node.ecc", text("/sys/devices/system/edac/mc/mc0/ue_count", "1")),
    "processor offline": ("node.processors", text("/sys/devices/system/cpu/present", "0-3")),
    "governor": (
        "node.governor",
        text("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave"),
    ),
    "clock source": (
        "node.clock-source",
        text("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
    ),
    "no NTP": ("node.clock-synchronised", _unsynchronised),
    "blocked process": ("node.blocked", text("/proc/812/stat", "812 (python (3)) D 1 812 812 0 -1")),
    "just rebooted": ("node.uptime", text("/proc/uptime", "40.0 60.0")),
    "full disk": ("storage.space", _full),
    "no inodes": ("storage.space", _no_inodes),
    "read-only root": ("storage.read-only", instead("/proc/mounts", "ext4 rw", "ext4 ro")),
    "shared home lost": (
        "storage.fstab",
        instead("/proc/mounts", "nfs1:/home /shared\\040home nfs4 rw,hard 0 0\n", ""),
    ),
    "degraded RAID": ("storage.raid", instead("/proc/mdstat", "[UU]", "[U_]")),
    "inactive RAID": ("storage.raid", instead("/proc/mdstat", "md0 : active", "md0 : inactive")),
    "dead NVMe": ("storage.nvme", text("/sys/class/nvme/nvme0/state", "dead")),
    "stuck FUSE": ("storage.fuse", text("/sys/fs/fuse/connections/52/waiting", "12")),
    "narrow PCIe": ("pcie.link", text(f"{NIC}/current_link_width", "8")),
    "slow PCIe": ("pcie.link", text(f"{NIC}/current_link_speed", "16.0 GT/s PCIe")),
    "fatal AER": ("pcie.errors", text(f"{NIC}/aer_dev_fatal", "DLP 1\nTOTAL_ERR_FATAL 1")),
    "nonfatal AER": ("pcie.errors", text(f"{NIC}/aer_dev_nonfatal", "TLP 2\nTOTAL_ERR_NONFATAL 2")),
    "ACS on": ("pcie.acs", text("/sys/bus/pci/devices/0000:00:01.0/config", bridge(redirects=True))),
    "port down": ("backend.port-state", text(PORT.format(0) + "/state", "1: DOWN")),
    "port polling": ("backend.port-state", text(PORT.format(2) + "/phys_state", "2: Polling")),
    "slow port": ("backend.port-rate", text(PORT.format(1) + "/rate", "200 Gb/sec (2X NDR)")),
    "link integrity": (
        "backend.link-errors",
        grown(PORT.format(1) + "/counters/local_link_integrity_errors", "1"),
    ),
    "buffer overrun": (
        "backend.link-errors",
        grown(PORT.format(1) + "/counters/excessive_buffer_overrun_errors", "1"),
    ),
    "full buffer overrun": (
        "backend.link-counters",
        text(PORT.format(1) + "/counters/excessive_buffer_overrun_errors", "15"),
    ),
    "no subnet manager": ("backend.port-state", text(PORT.format(2) + "/state", "2: INIT")),
    "symbol errors": ("backend.link-counters", text(PORT.format(2) + "/counters/symbol_error", "9")),
    "recoveries": ("backend.link-counters", text(PORT.format(2) + "/counters/link_error_recovery", "1")),
    "went down": ("backend.link-counters", text(PORT.format(2) + "/counters/link_downed", "1")),
    "receive errors": ("backend.link-counters", text(PORT.format(2) + "/counters/port_rcv_errors", "101")),
    "discards": ("backend.link-counters", text(PORT.format(2) + "/counters/port_xmit_discards", "1001")),
    "RoCE v1 only": ("backend.gids", _no_roce_v2),
    "RoCE v1 for rdma_cm": (
        "backend.roce-version",
        text("/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "IB/RoCE v1"),
    ),
    "another PKey": ("backend.pkeys", text(PORT.format(3) + "/pkeys/0", "0x8001")),
    "no uverbs": ("backend.character-devices", gone("/dev/infiniband/uverbs0")),
    "no rdma_cm": ("backend.character-devices", gone("/dev/infiniband/rdma_cm")),
    "XID 79": ("kernel-log.xid", logged(XID.format(79))),
    "XID 48": ("kernel-log.xid", logged(XID.format(48))),
    "copy engine again and again": ("kernel-log.xid", logged(XID.format(39), 5, 600.0)),
    "NVLink 5": (
        "kernel-log.xid",
        logged("NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Fatal XC0 i0 Link 13 (0x00000004 0x00000040)"),
    ),
    "GPU to be reset": (
        "kernel-log.xid",
        logged(
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to "
            "0x1 (GPU Reset Required)"
        ),
    ),
    "AMD RAS": (
        "kernel-log.amd-gpu",
        logged(f"{AMD} uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"),
    ),
    "AMD ring": (
        "kernel-log.amd-gpu",
        logged("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=5"),
    ),
    "NIC command": (
        "kernel-log.nic",
        logged(f"{MLX5} wait_func:1131:(pid 1): ACCESS_REG(0x805) timeout. {LEAK}"),
    ),
    "bnxt firmware": (
        "kernel-log.nic",
        logged("bnxt_en 0000:a8:00.0 ens5f0np0: Firmware not responding, status: 0x8000"),
    ),
    "firmware's record": ("kernel-log.machine", logged("{1}[Hardware Error]: event severity: recoverable")),
    "SXid": ("kernel-log.sxid", logged("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal")),
    "NIC firmware": ("kernel-log.nic", logged(f"{MLX5} poll_health:821: Fatal error 1 detected")),
    "NIC power": ("backend.module-events", logged(f"{MLX5} Detected insufficient power on the PCIe slot")),
    "hot transceiver": ("kernel-log.nic", logged(f"{MLX5} Port module event: module 0, High Temperature")),
    "transmit timeout": (
        "kernel-log.nic",
        logged("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out 5000 ms"),
    ),
    "unknown warning": ("kernel-log.unknown", warned("nvme nvme0: controller is down; will reset")),
    "unknown error": ("kernel-log.unknown", warned("irq 16: nobody cared (try booting with irqpoll)")),
    "crash in NCCL": (
        "kernel-log.collective-library",
        logged("python[812]: segfault at 0 ip 00007f2a error 4 in libnccl.so.2.21.5[7f29+a000]"),
    ),
    "machine check": (
        "kernel-log.machine",
        logged("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7"),
    ),
    "soft lockup": ("kernel-log.machine", logged("watchdog: BUG: soft lockup - CPU#3 stuck for 22s!")),
    "blocked task": ("kernel-log.machine", logged("INFO: task kworker/3:1 blocked for more than 120 s")),
    "memory error": ("kernel-log.machine", logged("EDAC MC0: 1 UE memory read error on CPU_SrcID#0")),
    "disk error": ("kernel-log.machine", logged("blk_update_request: I/O error, dev nvme1n1, sector 2048")),
    "clock unstable": ("kernel-log.machine", logged("clocksource: Marking clocksource 'tsc' as unstable")),
}
