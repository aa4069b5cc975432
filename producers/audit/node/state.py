"""Node checks: memory, processors, system clock, blocked processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from producers.audit.base import Checks, Finding, checked, failed, passed
from producers.audit.host.base import Host, Missing, Unreadable
from schemas.audit_remedy import remedy

MIN_AVAILABLE_BYTES: Final = 100 << 20
MAX_SWAPPED: Final = 0.01
"""Largest share of the memory's size that may be swapped out: the kernel swaps out some idle pages."""
MIN_UPTIME_S: Final = 600.0
MAX_CPUS: Final = 1 << 16
"""More processors than any kernel supports."""
BLOCKED_READS: Final = 3
BLOCKED_PAUSE_S: Final = 1.0
"""Time between readings. Every write waits uninterruptibly for a moment, so that only a process that waits
in each reading is a finding."""
THREADS: Final = frozenset({2, 4, 8})
"""Numbers of processors of a core with simultaneous multithreading: of x86, and of Power."""
CLOCKS: Final = frozenset({"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"})
"""Clock sources that programs read from the processor's counter, without a system call."""
CPU: Final = "/sys/devices/system/cpu"
EDAC: Final = "/sys/devices/system/edac/mc"
STA_UNSYNC: Final = 0x40
"""Status bit of adjtimex(2) that is set while the system clock follows no source."""
CHECKS: Final = Checks()


def meminfo_bytes(text: str) -> dict[str, int]:
    """Return the amounts in /proc/meminfo by name, bytes."""
    bytes_by_name = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        value, _, unit = rest.strip().partition(" ")
        bytes_by_name[name] = int(value) * (1024 if unit == "kB" else 1)
    return bytes_by_name


def cpu_list(text: str) -> list[int]:
    """Return the numbers of a kernel CPU list such as `0-3,8`."""
    numbers: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not 0 <= begin <= end < MAX_CPUS:
            raise ValueError(f"CPU list {text!r:.60}, expected numbers below {MAX_CPUS:,}")
        numbers.extend(range(begin, end + 1))
    return numbers


@CHECKS.error("node.memory", "Memory is available, and swap is hardly used", 86)
@remedy.monitor("End the program that uses the memory; replace a DIMM with corrupted memory")
def _memory(host: Host) -> Iterator[Finding]:
    memory = meminfo_bytes(host.read("/proc/meminfo"))
    available = memory["MemAvailable"]
    yield checked(
        available >= MIN_AVAILABLE_BYTES,
        f"{available >> 20:,} MiB available, expected at least {MIN_AVAILABLE_BYTES >> 20}",
    )
    used = memory["SwapTotal"] - memory["SwapFree"]
    limit = round(MAX_SWAPPED * memory["MemTotal"])
    yield checked(used <= limit, f"{used >> 20:,} MiB in use, expected at most {limit >> 20:,}", "swap")
    broken = memory.get("HardwareCorrupted", 0)
    yield checked(broken == 0, f"{broken >> 10:,} KiB retired by the kernel", "corrupted memory")


@CHECKS.warning("node.oom", "No process was killed for memory", 86)
@remedy.monitor("`dmesg | grep -i oom` names the process")
def _oom(host: Host) -> Iterator[Finding]:
    for line in host.read("/proc/vmstat").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            yield checked(int(value) == 0, f"{int(value):,} processes killed for memory since boot")
            return
    raise Missing("the kernel does not count the processes that it kills for memory (before 4.13)")


@CHECKS.error("node.ecc", "Memory has no uncorrectable ECC errors", 86)
@remedy.replace("Replace the DIMM that /sys/devices/system/edac/mc names")
def _edac(host: Host) -> Iterator[Finding]:
    controllers = [name for name in host.names(EDAC) if name.startswith("mc")]
    if not controllers:
        raise Missing("no memory controller reports ECC errors (EDAC)")
    for name in controllers:
        lost, mended = (int(host.read(f"{EDAC}/{name}/{kind}_count")) for kind in ("ue", "ce"))
        yield checked(lost == 0, f"{lost:,} uncorrectable and {mended:,} correctable errors", name)


@CHECKS.error("node.processors", "All processors are online", 83)
@remedy.reboot("Look for a machine check in `dmesg`; reboot")
def _online(host: Host) -> Iterator[Finding]:
    present, online = (cpu_list(host.read(f"{CPU}/{kind}")) for kind in ("present", "online"))
    offline = sorted(set(present) - set(online))
    text = f"{len(online)} of {len(present)} processors are online"
    if offline and len(present) / len(online) in THREADS and _has_no_siblings(host):
        yield passed(f"{text}; simultaneous multithreading is off")
    else:
        yield checked(not offline, text + (f"; offline: {offline[:8]}" if offline else ""))


def _has_no_siblings(host: Host) -> bool:
    """Return whether simultaneous multithreading is off: each core has one processor online."""
    try:
        return host.read(f"{CPU}/smt/control") in ("off", "forceoff")
    except Missing:
        return False


@CHECKS.warning("node.governor", "Processors run at full frequency", 84)
@remedy.monitor("cpupower frequency-set -g performance")
def _governor(host: Host) -> Iterator[Finding]:
    governors: dict[str, int] = {}
    for number in cpu_list(host.read(f"{CPU}/online")):
        name = host.read(f"{CPU}/cpu{number}/cpufreq/scaling_governor")
        governors[name] = governors.get(name, 0) + 1
    text = ", ".join(f"{name} on {count}" for name, count in sorted(governors.items()))
    yield checked(set(governors) == {"performance"}, f"governor {text}, expected performance")


@CHECKS.error("node.clock-source", "The clock source is the processor's counter", 87)
@remedy.reboot("Look for 'clocksource: ... unstable' in `dmesg`; reboot")
def _clock_source(host: Host) -> Iterator[Finding]:
    source = host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    yield checked(
        source in CLOCKS, f"clock source {source}, expected tsc: others cost microseconds a reading"
    )


CHRONY_FIELDS: Final = 14
"""Number of fields of `chronyc -c tracking`; the third is the stratum, the last one the leap status."""


@CHECKS.warning("node.clock-synchronised", "The system clock is synchronised", 88)
@remedy.monitor("Start chronyd or ptp4l, and check its servers")
def _synchronised(host: Host) -> Iterator[Finding]:
    if not host.clock_status() & STA_UNSYNC:
        yield passed("the kernel says synchronised")
    elif _chrony_follows(host):
        yield passed("chronyd follows its source; without rtcsync it does not tell the kernel")
    else:
        yield failed("the system clock follows no source (STA_UNSYNC)")


def _chrony_follows(host: Host) -> bool:
    """Return whether chronyd runs and follows a source; STA_UNSYNC shows this only with option rtcsync."""
    try:
        fields = host.run("chronyc", "-c", "tracking").strip().split(",")
    except Unreadable:
        return False
    return (
        len(fields) == CHRONY_FIELDS
        and fields[2].isdecimal()
        and 0 < int(fields[2]) < 16
        and fields[13] == "Normal"
    )


@CHECKS.warning("node.blocked", "No process waits uninterruptibly", 89)
@remedy.reboot("`cat /proc/PID/stack` names the driver or file system")
def _blocked(host: Host) -> Iterator[Finding]:
    blocked = _waiting(host, [name for name in host.names("/proc") if name.isdigit()])
    for _ in range(BLOCKED_READS - 1):
        if not blocked:
            break
        host.pause(BLOCKED_PAUSE_S)
        blocked = _waiting(host, blocked)
    names = [f"{name} ({pid})" for pid, name in blocked.items()]
    yield from (failed("waits uninterruptibly for a device", name) for name in names[:5])
    if not blocked:
        yield passed("no process waits uninterruptibly")


def _waiting(host: Host, pids: Iterable[str]) -> dict[str, str]:
    """Return, by process id, the names of the processes in uninterruptible sleep."""
    name_by_pid = {}
    for pid in pids:
        try:
            stat = host.read(f"/proc/{pid}/stat")
        except Missing:  # it has ended
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        if rest.split()[:1] == ["D"]:
            name_by_pid[pid] = name
    return name_by_pid


@CHECKS.warning("node.uptime", "The host has been up for ten minutes", 91)
@remedy.monitor("Find out why it rebooted: `last -x`, IPMI SEL")
def _uptime(host: Host) -> Iterator[Finding]:
    uptime_s = float(host.read("/proc/uptime").split()[0])
    yield checked(uptime_s >= MIN_UPTIME_S, f"up for {uptime_s:,.0f} s, expected at least {MIN_UPTIME_S:.0f}")
