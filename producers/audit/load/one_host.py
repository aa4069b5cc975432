"""Active checks of one host: run the installed load programs, and compare figures with the machine type.

They run on request only, on an idle host. Each figure is a fact as well, so that the comparison across the
fleet finds a slow host without a threshold. A check whose program is not installed is SKIPPED.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from producers.audit.backend.rdma_ports import Port, is_efa, port_rate, ports, used_ports
from producers.audit.base import Checks, Fact, Finding, checked
from producers.audit.gpu.sku import AMD, NVIDIA, gpu_addresses, sku_of
from producers.audit.host.base import STREAM, Host, Missing, Unreadable
from producers.audit.load import benchmarks
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

FOLDERS: Final = (
    "/usr/local/bin",
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/usr/local/cuda/bin",
    "/opt/rocm/bin",
)
NCCL_FOLDERS: Final = (*FOLDERS, "/opt/nccl-tests/build", "/opt/nccl-tests", "/usr/local/nccl-tests/build")
RCCL_FOLDERS: Final = ("/opt/rccl-tests/build", "/opt/rccl-tests", "/opt/rocm/share/rccl-tests")
BURN_FOLDERS: Final = (*FOLDERS, "/opt/gpu-burn", "/opt/gpu_burn")
LOOPBACK: Final = (
    '"$0" "$@" >/dev/null 2>&1 & peer=$!; sleep 1; "$0" "$@" 127.0.0.1; code=$?; '
    "kill $peer 2>/dev/null; wait $peer 2>/dev/null; exit $code"
)
"""Both ends on one device: perftest's server in the background, and its client."""
"""Names of devices without the reliable connections that perftest uses."""
LOOPBACK_SHARE: Final = 0.36
"""Least share of a port's rate over loopback: Azure's test expects 18 GB/s on a port of 400 Gbit/s."""
GPU_SHARE: Final = 0.9
"""Azure expects 360 of 400 Gbit/s from GPU memory; a port that sends to itself is limited by the bus."""
QUEUE_PAIRS: Final = (1, 2, 4, 8)
SHAPES: Final = {"plain": "Ring", "hierarchical": "Tree"}
MIN_OF_BEST: Final = 0.5
"""Least share of the best bandwidth: if another number of queue pairs halves it, a path is at fault."""
MIN_READ_BYTES_PER_S: Final = 200e6
"""Least rate of sequential reads; even a SATA drive reads faster."""
SUITES: Final = ("gst_single", "iet_single", "mem", "babel", "pebb_single", "pbqt_single", "peqt_single")
SUITE_FOLDER: Final = "/opt/rocm/share/rocm-validation-suite/conf"
BURN_S: Final = 60
FIO: Final = (
    "--name=audit",
    "--filename=/var/tmp/.fabrictime-audit",
    "--size=1G",
    "--rw=read",
    "--bs=1M",
    "--direct=1",
    "--iodepth=32",
    "--ioengine=libaio",
    "--runtime=10",
    "--time_based",
    "--unlink=1",
    "--output-format=json",
)
ALL_REDUCE: Final = ("-b", "1G", "-e", "1G", "-n", "20", "-w", "5", "-g")
CHECKS: Final = Checks(active=True)


def program(host: Host, name: str, folders: tuple[str, ...] = FOLDERS) -> str:
    """Return the path of a program. Raises Missing if it is not installed."""
    for folder in folders:
        try:
            if name in host.names(folder):
                return f"{folder}/{name}"
        except Missing:
            continue
    raise Missing(f"{name}: not installed")


def _figure(name: str, value: float, unit: str, minimum: float, subject: str = "") -> Finding:
    text = f"{value:,.1f} {unit}" + (f", expected at least {minimum:,.1f}" if minimum else "")
    return replace(checked(value >= minimum, text, subject), fact=Fact(name, f"{value:g}", value))


def _expected(host: Host, fact: str, vendors: tuple[str, ...] = (NVIDIA, AMD)) -> float:
    """Return the least acceptable value of a fact for the host's machine type; 0 for an unknown type."""
    sku = sku_of(host, vendors)
    return sku.lowest(fact) if sku is not None else 0.0


def _rate_gbps(host: Host, device: str) -> float:
    """Return the rate of an RDMA device's first port, Gbit/s."""
    return port_rate(host.read(f"{Port(device, '1').folder}/rate")).gbps


def _each_device(host: Host, path: str, *options: str) -> Iterator[tuple[str, list[float] | Unreadable]]:
    """Run a perftest program from each RDMA device to itself; yield (device, figures or error)."""
    devices = sorted({port.device for port in used_ports(host) if not is_efa(port.device)})
    for number, device in enumerate(devices):
        arguments = (path, f"--ib-dev={device}", f"--port={18515 + number}", *options)
        try:
            text = host.load(30.0, "sh", "-c", LOOPBACK, *arguments)
            yield device, benchmarks.perftest_figures(text)
        except (Unreadable, ValueError) as error:
            yield device, Unreadable(str(error))


def _bandwidth(host: Host, name: str, share: float, *options: str) -> Iterator[Finding]:
    path = program(host, "ib_write_bw")
    if options and not gpu_addresses(host, NVIDIA):
        raise Missing("no NVIDIA GPU on PCIe")
    for device, figures in _each_device(host, path, "--report_gbits", "--duration=5", *options):
        if isinstance(figures, Unreadable):
            yield Finding(device, AuditStatus.UNKNOWN, str(figures))
        else:
            yield _figure(name, figures[3], "Gbit/s", share * _rate_gbps(host, device), device)


@CHECKS.error(
    "backend.write-bandwidth", "RDMA devices write at full rate to themselves", 35, 38, limit_s=330.0
)
@remedy.replace("Check PCIe width, MTU and the link's counters; compare with the fleet")
def _from_host_memory(host: Host) -> Iterator[Finding]:
    return _bandwidth(host, "write_gbps", LOOPBACK_SHARE)


@CHECKS.error(
    "backend.write-bandwidth-gpu", "RDMA devices write at full rate from GPU memory", 33, 36, limit_s=330.0
)
@remedy.replace("Load nvidia-peermem; turn ACS off; check the places of GPU and NIC")
def _from_gpu_memory(host: Host) -> Iterator[Finding]:
    return _bandwidth(host, "write_gpu_gbps", LOOPBACK_SHARE * GPU_SHARE, "--use_cuda=0")


@CHECKS.warning("backend.write-latency", "RDMA devices write in microseconds", 37, limit_s=330.0)
@remedy.monitor("Check processor frequency, C-states and relaxed ordering")
def _latency(host: Host) -> Iterator[Finding]:
    path = program(host, "ib_write_lat")
    sku = sku_of(host)
    limit = sku.highest("write_latency_us") if sku is not None else float("inf")
    for device, figures in _each_device(host, path, "--size=2", "--iters=5000"):
        if isinstance(figures, Unreadable):
            yield Finding(device, AuditStatus.UNKNOWN, str(figures))
            continue
        typical = figures[4]
        finding = checked(typical <= limit, f"typically {typical:g} us, expected at most {limit:g}", device)
        yield replace(finding, fact=Fact("write_latency_us", f"{typical:g}", typical))


def _all_reduce(host: Host, path: str, count: int, *environment: str) -> float:
    """Return the bus bandwidth of an all-reduce, GB/s. Raises ArithmeticError if it computes wrong values."""
    text = host.load(120.0, *environment, path, *ALL_REDUCE, str(count))
    bandwidth, wrong = benchmarks.bus_bandwidth(text)
    if wrong:
        raise ArithmeticError(f"{wrong:,} wrong values")
    return bandwidth


def _in_host(host: Host, vendor: str, folders: tuple[str, ...]) -> Iterator[Finding]:
    path, count = program(host, "all_reduce_perf", folders), len(gpu_addresses(host, vendor))
    if not count:
        raise Missing("no GPU for all_reduce_perf")
    sku = sku_of(host, (vendor,))
    minimum = sku.lowest("all_reduce_gb_per_s") if sku is not None and count == sku.gpus else 0.0
    try:
        bandwidth = _all_reduce(host, path, count)
    except ArithmeticError as error:
        yield checked(False, f"all-reduce: {error}")
        return
    yield _figure("all_reduce_gb_per_s", bandwidth, "GB/s", minimum)


@CHECKS.error(
    "collectives.nccl", "All-reduce within the host reaches the type's bandwidth", 47, 75, limit_s=130.0
)
@remedy.reset("Check NVLinks, clocks and power")
def _nccl(host: Host) -> Iterator[Finding]:
    return _in_host(host, NVIDIA, NCCL_FOLDERS)


@CHECKS.error("collectives.rccl", "All-reduce of AMD GPUs reaches the type's bandwidth", 47, limit_s=130.0)
@remedy.reset("Check XGMI, clocks and power of the GPUs")
def _rccl(host: Host) -> Iterator[Finding]:
    return _in_host(host, AMD, RCCL_FOLDERS)


@CHECKS.warning(
    "collectives.nccl-nics", "All-reduce over the NICs does not depend on queue pairs", 48, limit_s=1000.0
)
@remedy.monitor("Check ECMP, PFC and each NIC by ib_write_bw")
def _over_nics(host: Host) -> Iterator[Finding]:
    """Run all-reduce without NVLink and shared memory, for each algorithm and number of queue pairs."""
    path, count = program(host, "all_reduce_perf", NCCL_FOLDERS), len(gpu_addresses(host, NVIDIA))
    if count < 2:
        raise Missing("fewer than two NVIDIA GPUs")
    ports(host)
    bandwidths: dict[str, float] = {}
    for shape, algorithm in SHAPES.items():
        for pairs in QUEUE_PAIRS:
            subject = f"{shape}, {pairs} queue pairs"
            environment = (
                "NCCL_P2P_DISABLE=1",
                "NCCL_SHM_DISABLE=1",
                f"NCCL_ALGO={algorithm}",
                f"NCCL_IB_QPS_PER_CONNECTION={pairs}",
            )
            try:
                bandwidths[subject] = _all_reduce(host, path, count, *environment)
            except ArithmeticError as error:
                yield checked(False, str(error), subject)
            except (Unreadable, ValueError) as error:
                yield Finding(subject, AuditStatus.UNKNOWN, str(error))
    best = max(bandwidths.values(), default=0.0)
    for subject, bandwidth in bandwidths.items():
        yield _figure("all_reduce_over_nics_gb_per_s", bandwidth, "GB/s", MIN_OF_BEST * best, subject)


@CHECKS.error("gpu.diagnostic", "DCGM's diagnostic passes", 74, limit_s=910.0)
@remedy.replace("`dcgmi diag -r 3` on the drained host; replace the GPU that fails again")
def _diagnostic(host: Host) -> Iterator[Finding]:
    text = host.load(900.0, program(host, "dcgmi"), "diag", "--run", "2", "--json")
    for name, outcome in benchmarks.diagnostic_outcomes(text).items():
        status = AuditStatus.SKIPPED if "skip" in outcome else AuditStatus.PASSED
        yield Finding(name, status if outcome in ("pass", "skip", "skipped") else AuditStatus.FAILED, outcome)


@CHECKS.warning("node.memory-bandwidth", "Memory has the type's bandwidth", 85, limit_s=70.0)
@remedy.replace("Compare DIMMs and NUMA nodes with the fleet")
def _memory(host: Host) -> Iterator[Finding]:
    bandwidth = float(host.load(60.0, STREAM))
    share = 1.0
    sku = sku_of(host)
    if sku is not None:  # a virtual machine has a part of a machine's GPUs, and of its memory controllers
        gpus = max(len(gpu_addresses(host, vendor)) for vendor in (NVIDIA, AMD))
        share = min(1.0, gpus / sku.gpus)
    minimum = share * _expected(host, "memory_gb_per_s")
    yield _figure("memory_gb_per_s", bandwidth, "GB/s", minimum)


@CHECKS.warning("storage.read-bandwidth", "The local drive reads fast", 95, limit_s=70.0)
@remedy.replace("Check SMART and the drive's PCIe width")
def _drive(host: Host) -> Iterator[Finding]:
    bytes_per_s = benchmarks.read_bandwidth(host.load(60.0, program(host, "fio"), *FIO))
    yield _figure("read_mb_per_s", bytes_per_s / 1e6, "MB/s", MIN_READ_BYTES_PER_S / 1e6, "/var/tmp")  # noqa: S108


@CHECKS.error("gpu.copies", "Copies between host and GPUs have full bandwidth", 73, limit_s=310.0)
@remedy.replace("Check PCIe width and speed of the GPU, and its NUMA node")
def _copies(host: Host) -> Iterator[Finding]:
    tests = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce")
    text = host.load(300.0, program(host, "nvbandwidth"), "--json", "--testcase", *tests)
    minimum = _expected(host, "copy_gb_per_s", (NVIDIA,))
    for name, bandwidth in benchmarks.copy_bandwidths(text).items():
        yield _figure("copy_gb_per_s", bandwidth, "GB/s", minimum, name)


@CHECKS.error("gpu.amd-suite", "ROCm's validation suite passes", 75, 80, limit_s=3600.0)
@remedy.replace("Replace the GPU that fails again")
def _suite(host: Host) -> Iterator[Finding]:
    path, present = program(host, "rvs"), host.names(SUITE_FOLDER)
    for suite in SUITES:
        if f"{suite}.conf" not in present:
            continue
        try:
            text = host.load(600.0, path, "-c", f"{SUITE_FOLDER}/{suite}.conf")
            outcomes = benchmarks.suite_outcomes(text)
        except (Unreadable, ValueError) as error:
            yield Finding(suite, AuditStatus.UNKNOWN, str(error))
            continue
        for name, is_right in outcomes.items():
            yield checked(is_right, "passed" if is_right else "failed", f"{suite} {name}")


@CHECKS.error("gpu.burn", "GPUs compute right values under load", 75, 76, limit_s=190.0)
@remedy.replace("Replace the GPU")
def _burn(host: Host) -> Iterator[Finding]:
    text = host.load(BURN_S + 120.0, program(host, "gpu_burn", BURN_FOLDERS), str(BURN_S))
    for gpu, is_right in benchmarks.burn_outcomes(text).items():
        yield checked(is_right, "right values" if is_right else "wrong values under load", gpu)


@CHECKS.error("gpu.direct-sanity", "GDRCopy passes its tests", 33, limit_s=130.0)
@remedy.monitor("modprobe gdrdrv, and install one version of module and library")
def _gdrcopy(host: Host) -> Iterator[Finding]:
    right, wrong = benchmarks.gdrcopy_failures(host.load(120.0, program(host, "gdrcopy_sanity")))
    yield checked(right > 0 and not wrong, f"{right} tests passed, {wrong} failed")
