"""GPU checks of NVIDIA GPUs, from NVML and PCIe.

All checks of a run share one output of `producers.audit.gpu.nvml`. If the driver does not answer within the
limit, they are UNKNOWN. A lost GPU fails `gpu.answers`; the other checks leave it out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from producers.audit.base import Checks, Fact, Finding, checked, failed, passed, stated
from producers.audit.gpu.sku import NVIDIA, gpu_addresses, sku_of
from producers.audit.host.base import NVML, Host, Missing, NotRecorded, Unreadable
from producers.audit.reasons import mismatch
from schemas.audit_remedy import remedy
from schemas.records import AuditAction, AuditSeverity, AuditStatus

NOT_RECORDED: Final[Mapping[str, bool]] = {"not_recorded": True}
"""Value in a report made from a support bundle that does not hold it."""
LIMIT_S: Final = 35.0
"""Longer than NVML may take: without persistence mode it has to start each GPU."""
SLOWDOWNS: Final = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""NVML's reasons for low clocks that show a fault. Idle and the power cap are no faults."""
FABRIC_UNSUPPORTED: Final = 0
FABRIC_COMPLETED: Final = 3
"""States of a GPU in the NVLink fabric (nvml.h, nvmlGpuFabricState_t): 1 and 2 are before its end."""
FABRIC_FAULTS: Final = {0: "bandwidth is degraded", 2: "a route recovers", 4: "a route is unhealthy"}
"""Fields of the fabric's health mask by their lowest bit; a field has two bits, and 1 is a fault."""
MAX_LINK_ERRORS: Final = 4
"""Largest number of errors of a link: imbue's checks warn from 5."""
MAX_IDLE_BYTES: Final = 15 << 20
"""Largest memory use of an idle GPU: Meta's GCM expects no more before a job."""
_SUPERCHIP: Final = re.compile(r"\bG[BH]\d{3}\b")
"""Names of GPUs that share their memory with a Grace processor, also of those that no machine type lists."""
MARGIN_C: Final = 3
"""Least distance to the temperature at which the GPU slows down."""
CHECKS: Final = Checks(limit_s=LIMIT_S)


@dataclass(frozen=True, slots=True)
class Gpu:
    """The values of one GPU by name: None if the GPU does not support it, a dict `error` if NVML failed."""

    index: int
    values: Mapping[str, Any]

    @property
    def subject(self) -> str:
        """The GPU's name in findings."""
        return f"GPU {self.index}"

    def value(self, name: str) -> Any:
        """Return a value. Raises Missing if the GPU does not support it, Unreadable if NVML failed."""
        value = self.values[name]
        if value is None:
            raise Missing(f"{name} is not supported")
        if value == NOT_RECORDED:
            raise NotRecorded(f"{name}: not in the bundle")
        if isinstance(value, dict):
            raise Unreadable(f"{name}: {value.get('error', 'no value')}")
        return value


def _report(host: Host) -> dict[str, Any]:
    """Return the report of `producers.audit.gpu.nvml`. Raises Missing without an NVIDIA GPU.

    Raises Unreadable if NVML does not answer, ValueError for another report.
    """
    if not gpu_addresses(host, NVIDIA):
        raise Missing("no NVIDIA GPU on PCIe")
    try:
        report = json.loads(host.run(NVML))
    except Missing as error:
        raise Unreadable(str(error)) from error
    if not isinstance(report, dict) or not isinstance(report.get("gpus"), list):
        raise ValueError("NVML's report is no table with GPUs")
    return report


def gpus(host: Host) -> list[Gpu]:
    """Return the GPUs that answer. Raises Missing without an NVIDIA GPU, Unreadable if none answers."""
    live_gpus = [
        Gpu(index, entry)
        for index, entry in enumerate(_report(host)["gpus"])
        if isinstance(entry, dict) and "lost" not in entry
    ]
    if not live_gpus:
        raise Unreadable("no GPU answers NVML")
    return live_gpus


def _of_each(find: Callable[[Gpu], Iterator[Finding]]) -> Callable[[Host], Iterator[Finding]]:
    """Return a check's function that runs `find` for each GPU, also after one that cannot be read."""

    def find_all(host: Host) -> Iterator[Finding]:
        for gpu in gpus(host):
            try:
                yield from (replace(finding, subject=gpu.subject) for finding in find(gpu))
            except Missing as error:
                yield Finding(gpu.subject, AuditStatus.SKIPPED, str(error))
            except (Unreadable, KeyError, TypeError, ValueError, IndexError) as error:
                yield Finding(gpu.subject, AuditStatus.UNKNOWN, mismatch(error))

    return find_all


class Rule(NamedTuple):
    """A check that `is_right` decides from some `values` of a GPU, for each GPU by itself."""

    check_id: str
    title: str
    values: tuple[str, ...]
    is_right: Callable[..., bool]
    text: str
    """Text of the finding, a format string to which the values are given in order."""
    severity: AuditSeverity
    action: AuditAction
    remedy: str
    rows: tuple[int, ...]
    fact: str = ""
    """Name of the fact that the first value is, for the comparison across the fleet; empty for none."""


def _by_rule(rule: Rule) -> Callable[[Host], Iterator[Finding]]:
    def find(gpu: Gpu) -> Iterator[Finding]:
        values = [gpu.value(name) for name in rule.values]
        finding = checked(bool(rule.is_right(*values)), rule.text.format(*values))
        if rule.fact:
            first = values[0][0] if isinstance(values[0], list) else values[0]
            finding = replace(finding, fact=Fact(rule.fact, f"{first:g}", float(first)))
        yield finding

    return _of_each(find)


ERROR, WARNING = AuditSeverity.ERROR, AuditSeverity.WARNING
_DRAIN: Final = "nvidia-smi --gpu-reset after its jobs have ended"
RULES: Final = (
    Rule("gpu.ecc-mode", "ECC is on", ("ecc_mode",), lambda mode: mode == [1, 1],
         "ECC is {0[0]}, after the next reset {0[1]}; expected 1 and 1", ERROR, AuditAction.REBOOT,
         "nvidia-smi -e 1, then reboot", (63,)),
    Rule("gpu.ecc-uncorrectable", "GPU memory has no uncorrectable errors", ("ecc_uncorrected",),
         lambda count: count == 0, "{0:,} uncorrectable ECC errors since the driver started, expected 0",
         ERROR, AuditAction.RESET, _DRAIN, (63,), "ecc_uncorrectable"),
    Rule("gpu.ecc-correctable", "GPU memory has few correctable errors", ("ecc_corrected",),
         lambda count: count < 20_000_000, "{0:,} correctable ECC errors, expected below 20,000,000",
         WARNING, AuditAction.MONITOR, "Watch the rate; replace the GPU if it grows", (63,),
         "ecc_correctable"),
    Rule("gpu.sram", "GPU SRAM is below its error limit", ("sram",),
         lambda sram: sram[1] <= 5 and not sram[2],
         "SRAM: {0[0]:,} corrected, {0[1]:,} uncorrectable (at most 5), limit passed: {0[2]}", ERROR,
         AuditAction.REPLACE, "Replace the GPU", (63,)),
    Rule("gpu.row-remap", "No row remap is pending", ("remapped_rows",), lambda rows: not rows[2],
         "rows remapped for {0[0]} correctable and {0[1]} uncorrectable errors, pending: {0[2]}", ERROR,
         AuditAction.RESET, _DRAIN, (64,), "remapped_rows_correctable"),
    Rule("gpu.row-remap-failure", "Row remaps succeed", ("remapped_rows",),
         lambda rows: not rows[3] and rows[1] <= 512,
         "failed remap: {0[3]}; {0[1]} rows for uncorrectable errors, expected at most 512", ERROR,
         AuditAction.REPLACE, "Replace the GPU", (64,)),
    Rule("gpu.retired-pages", "Few memory pages are retired", ("retired_pages", "retirement_pending"),
         lambda pages, pending: pages <= 10 and not pending,
         "{0} retired pages, expected at most 10; retirement pending: {1}", ERROR, AuditAction.REPLACE,
         "Reboot; replace the GPU if pages remain", (64,)),
    Rule("gpu.throttle", "GPUs are not slowed down by a fault", ("clock_reasons",),
         lambda bits: not any(bits & bit for bit in SLOWDOWNS),
         "reasons for low clocks: {0:#x}, expected none of 0x8 (hardware), 0x20, 0x40 (heat), 0x80 (power)",
         ERROR, AuditAction.MONITOR, "Check cooling and power supplies: nvidia-smi -q -d PERFORMANCE",
         (67,)),
    Rule("gpu.temperature", "GPUs are cool", ("temperature_c", "slowdown_c"),
         lambda now, limit: now <= limit - MARGIN_C, "{0} C, slowdown from {1} C", ERROR,
         AuditAction.MONITOR, "Check fans and coolant of the host", (68,), "temperature_celsius"),
    Rule("gpu.memory-temperature", "GPU memory is cool", ("memory_temperature_c", "memory_max_c"),
         lambda now, limit: now <= limit - MARGIN_C, "memory {0} C, highest allowed {1} C", ERROR,
         AuditAction.MONITOR, "Check fans and coolant of the host", (68,), "memory_temperature_celsius"),
    Rule("gpu.power-limit", "GPUs may use their full power", ("power_limit_mw", "power_default_mw"),
         lambda limit, default: limit >= default, "power limit {0:,} mW, default {1:,} mW", WARNING,
         AuditAction.MONITOR, "nvidia-smi -pl WATTS", (68,), "power_limit_mw"),
    Rule("gpu.clock-limit", "GPU clocks are not lowered", ("application_mhz", "application_default_mhz"),
         lambda clock, default: clock >= default, "application clock {0} MHz, default {1} MHz", WARNING,
         AuditAction.MONITOR, "nvidia-smi -rac; nvidia-smi -rgc", (69,)),
    Rule("gpu.persistence", "Persistence mode is on", ("persistence",), lambda mode: mode == 1,
         "persistence mode {0}, expected 1", WARNING, AuditAction.MONITOR,
         "systemctl enable --now nvidia-persistenced", (70,)),
    Rule("gpu.mig", "MIG is off", ("mig",), lambda mig: mig == [0, 0],
         "MIG is {0[0]}, after the next reset {0[1]}; expected 0 and 0", ERROR, AuditAction.RESET,
         "nvidia-smi -mig 0", (70,)),
    Rule("gpu.compute-mode", "Programs may use the GPUs", ("compute_mode",), lambda mode: mode in (0, 3),
         "compute mode {0}, expected 0 (default) or 3 (one process)", ERROR, AuditAction.MONITOR,
         "nvidia-smi -c 0", (81,)),
    Rule("gpu.gsp", "GSP firmware runs as the driver's default has it", ("gsp_mode",),
         lambda gsp: gsp[0] == gsp[1], "GSP firmware {0[0]}, default {0[1]}", WARNING, AuditAction.REBOOT,
         "Remove NVreg_EnableGpuFirmware from /etc/modprobe.d, then reboot", (70,)),
    Rule("gpu.peers", "GPUs with NVLink reach each other directly", ("peers", "nvlink_active"),
         lambda peers, nvlinks: not nvlinks or not any(peers),
         "status of peer access by GPU: {0}, expected 0", ERROR, AuditAction.REBOOT,
         "nvidia-smi topo -p2p r; check NVLink, ACS and IOMMU", (65,)),
    Rule("gpu.graphics", "No graphics process uses a GPU", ("graphics_processes",), lambda pids: not pids,
         "graphics processes {0}", WARNING, AuditAction.MONITOR, "systemctl set-default multi-user.target",
         (81,)),
)  # fmt: skip


@CHECKS.error("gpu.count", "All GPUs are there", 59, 62)
@remedy.reboot("Read the kernel log for XID 79; reboot; reseat or replace the GPU")
def _count(host: Host) -> Iterator[Finding]:
    on_bus = len(gpu_addresses(host, NVIDIA))
    if not on_bus:
        raise Missing("no NVIDIA GPU on PCIe")
    sku = sku_of(host, (NVIDIA,))
    if sku is not None and sku.gpus:
        is_whole = on_bus == sku.gpus or sku.is_part(on_bus)
        yield checked(is_whole, f"{on_bus} on PCIe, expected {sku.gpus} or an even part of them ({sku.name})")
    try:
        count = len(_report(host)["gpus"])
    except (Unreadable, ValueError) as error:
        yield Finding("NVML", AuditStatus.UNKNOWN, str(error))
        return
    finding = checked(count == on_bus, f"NVML has {count} GPUs, PCIe {on_bus}", "NVML")
    yield replace(finding, fact=Fact("gpus", str(count), float(count)))


@CHECKS.error("gpu.answers", "All GPUs answer the driver", 62, 79)
@remedy.reboot("Reboot; replace the GPU if it is lost again")
def _answers(host: Host) -> Iterator[Finding]:
    for index, entry in enumerate(_report(host)["gpus"]):
        lost = entry.get("lost") if isinstance(entry, dict) else "no values"
        subject = f"GPU {index}"
        yield failed(str(lost), subject) if lost is not None else passed("answers", subject)


@CHECKS.error("gpu.same", "GPUs of a host are the same", 70)
@remedy.replace("Flash the VBIOS of the others, or replace the GPU")
def _same(host: Host) -> Iterator[Finding]:
    """Compare model, firmware and memory of each GPU with the majority of the host."""
    live_gpus = gpus(host)
    for name in ("name", "vbios", "inforom", "memory_total_bytes"):
        values: dict[str, str] = {}
        for gpu in live_gpus:
            try:
                values[gpu.subject] = str(gpu.value(name))
            except Missing:
                continue
            except Unreadable as error:
                yield Finding(gpu.subject, AuditStatus.UNKNOWN, str(error))
        majority = Counter(values.values()).most_common(1)
        for subject, value in values.items():
            text = f"{name} {value}, the host's majority {majority[0][0]}"
            yield replace(checked(value == majority[0][0], text, subject), fact=Fact(name, value))


@CHECKS.error("gpu.versions", "Driver library and kernel module agree", 57, 70, 81)
@remedy.reboot("Reboot after an update of the driver")
def _versions(host: Host) -> Iterator[Finding]:
    report = _report(host)
    library = str(report["driver"])
    module = host.read("/proc/driver/nvidia/version").split()
    yield replace(
        checked(library in module, f"library {library}, expected the version of the kernel module"),
        fact=Fact("driver", library),
    )
    for name in ("cuda", "nvml"):
        value = str(report[name])
        yield replace(passed(f"{name} {value}"), fact=Fact(name, value))


@CHECKS.error("gpu.fabric", "GPUs have joined the NVLink fabric", 66)
@remedy.reboot("systemctl restart nvidia-fabricmanager, or nvidia-imex; read its log")
@_of_each
def _fabric(gpu: Gpu) -> Iterator[Finding]:
    state, status, health = gpu.value("fabric")
    if state == FABRIC_UNSUPPORTED:
        raise Missing("the GPU belongs to no NVLink fabric")
    yield checked(
        state == FABRIC_COMPLETED and status == 0,
        f"state {state} and status {status} of the NVLink fabric, expected {FABRIC_COMPLETED} and 0",
    )
    for shift, text in FABRIC_FAULTS.items():
        if health >> shift & 0b11 == 1:
            yield failed(f"NVLink fabric: {text}")


@CHECKS.error("gpu.nvlinks", "All NVLinks are active", 65)
@remedy.reset("Reset all GPUs and start nvidia-fabricmanager; replace the GPU if a link stays down")
def _nvlinks(host: Host) -> Iterator[Finding]:
    sku = sku_of(host, (NVIDIA,))

    def find(gpu: Gpu) -> Iterator[Finding]:
        links = gpu.value("nvlink_active")
        if sku is None and not any(links):
            raise Missing("no NVLink is in use: cards on PCIe have none without a bridge")
        expected = (int(sku.lowest("nvlinks")) if sku is not None else 0) or len(links)
        down = [number for number, state in enumerate(links) if not state]
        text = f"{len(links) - len(down)} links active, expected {expected}"
        finding = checked(not down and len(links) == expected, text + (f"; down: {down}" if down else ""))
        yield replace(finding, fact=Fact("nvlinks", str(len(links)), float(len(links))))

    yield from _of_each(find)(host)


@CHECKS.warning("gpu.nvlink-errors", "NVLinks count few errors", 65)
@remedy.reset("Reset all GPUs; replace the GPU if they return")
def _nvlink_errors(host: Host) -> Iterator[Finding]:
    """Find GPUs with errors of NVLinks, and state the count of each link."""

    def find(gpu: Gpu) -> Iterator[Finding]:
        counts = gpu.value("nvlink_errors")
        text = f"errors by link: {counts}, expected at most {MAX_LINK_ERRORS} in all"
        yield checked(sum(counts) <= MAX_LINK_ERRORS, text)

    yield from _of_each(find)(host)
    for gpu in gpus(host):
        counts = gpu.values.get("nvlink_errors")
        if isinstance(counts, list) and counts:
            yield stated("gpu_serial", str(gpu.values.get("uuid")), gpu.subject)
            for link, count in enumerate(counts):
                yield stated("nvlink_errors_total", count, f"{gpu.subject}/NVLink {link}")


def _figure(host: Host, name: str, text: str) -> Iterator[Finding]:
    """Compare a value of each GPU with the least value for the machine type. `text` formats both values."""
    sku = sku_of(host, (NVIDIA,))
    minimum = sku.lowest(name) if sku is not None else 0.0

    def find(gpu: Gpu) -> Iterator[Finding]:
        value = float(gpu.value(name))
        finding = checked(value >= minimum, text.format(value, minimum))
        yield replace(finding, fact=Fact(name, f"{value:g}", value))

    return _of_each(find)(host)


@CHECKS.error("gpu.nvlink-speed", "NVLinks have full speed", 65)
@remedy.reset("Reset all GPUs; replace the GPU if it stays slow")
def _nvlink_speed(host: Host) -> Iterator[Finding]:
    return _figure(host, "nvlink_mbps", "{0:,.0f} MB/s a link, expected at least {1:,.0f}")


@CHECKS.warning("gpu.clock", "GPU clocks reach the type's maximum", 69)
@remedy.monitor("nvidia-smi -rgc; check the VBIOS")
def _clock(host: Host) -> Iterator[Finding]:
    return _figure(host, "sm_max_mhz", "highest clock {0:,.0f} MHz, expected at least {1:,.0f}")


for _rule in RULES:
    _declared = CHECKS.error if _rule.severity is ERROR else CHECKS.warning
    _declared(_rule.check_id, _rule.title, *_rule.rows)(remedy(_rule.action, _rule.remedy)(_by_rule(_rule)))


@CHECKS.error("gpu.orphan-memory", "GPU memory belongs to a process", 71)
@remedy.reset(_DRAIN)
def _orphans(host: Host) -> Iterator[Finding]:
    sku = sku_of(host, (NVIDIA,))
    is_shared = sku is not None and sku.has_shared_memory
    if is_shared or any(_SUPERCHIP.search(str(gpu.values.get("name"))) for gpu in gpus(host)):
        raise Missing("GPU memory is a NUMA node of the host: the kernel uses it too")

    def find(gpu: Gpu) -> Iterator[Finding]:
        used = gpu.value("memory_used_bytes")
        compute, graphics = gpu.value("processes"), gpu.value("graphics_processes")
        is_right = bool(compute or graphics) or used <= MAX_IDLE_BYTES
        yield checked(is_right, f"{used:,} bytes in use by {compute} and {graphics}")

    yield from _of_each(find)(host)


@CHECKS.error("gpu.idle", "GPUs are idle before a job", 71, active=True)
@remedy.monitor("End the processes that `nvidia-smi` lists")
@_of_each
def _idle(gpu: Gpu) -> Iterator[Finding]:
    pids = gpu.value("processes")
    yield checked(not pids, f"{len(pids)} processes compute, expected none before a job")
