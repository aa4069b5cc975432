"""Software checks of systemd units: restarts, fabric manager, container runtime, maintenance, panics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from producers.audit.backend.rdma_ports import all_devices, manages_switches
from producers.audit.base import Checks, Finding, checked, failed, passed, stated
from producers.audit.gpu.sku import DEVICES, NVIDIA, gpu_addresses, sku_of
from producers.audit.host.base import Host, Missing
from producers.audit.software.environment import processes
from schemas.audit_remedy import remedy

UNITS: Final = (
    "chronyd", "chrony", "ntpd", "systemd-timesyncd", "ptp4l", "phc2sys", "docker", "containerd", "kubelet",
    "slurmd", "munge", "sssd", "nvidia-persistenced", "nvidia-fabricmanager", "nvidia-imex", "nvidia-dcgm",
    "dcgm", "openibd", "rdma-ndd", "opensmd", "lldpd", "mcelog", "rasdaemon", "irqbalance", "nvidia-powerd",
    "rpcbind", "autofs", "sshd", "ssh", "cron", "crond",
)  # fmt: skip
"""Services that must run on a host if they are enabled there."""
PROPERTIES: Final = "Id,LoadState,ActiveState,NRestarts,UnitFileState"
SHOW: Final = ("systemctl", "show", f"--property={PROPERTIES}", *(f"{name}.service" for name in UNITS))
MAX_RESTARTS: Final = 2
"""Largest number of restarts that is no error; NVSentinel: three of the fabric manager are a fault."""
SWITCH_CLASS: Final = "0x0680"
"""PCI class of an NVSwitch."""
MANAGER_PROCESSES: Final = {"nvidia-imex": "nvidia-imex", "nvidia-fabricmanager": "nv-fabricmanage"}
"""Beginning of the name of a service's process, of 15 characters: in a container it has no unit."""
SUBNET_MANAGER: Final = "nvlsm"
"""Process that sets up the routes of NVLink 5 (NVIDIA's fabric manager user guide)."""
SUBNET_MANAGER_PID: Final = "/var/run/nvidia-fabricmanager/nvlsm.pid"
MAINTENANCE: Final = ("/run/systemd/shutdown/scheduled", "/run/nologin", "/etc/nologin", "/var/run/nologin")
CHECKS: Final = Checks()


def properties(text: str) -> dict[str, dict[str, str]]:
    """Return the properties in the output of `systemctl show`, by unit name without the suffix."""
    properties_by_unit = {}
    for block in text.strip().split("\n\n"):
        fields = dict(line.partition("=")[::2] for line in block.splitlines())
        if "Id" in fields:
            properties_by_unit[fields["Id"].removesuffix(".service")] = fields
    return properties_by_unit


def _units(host: Host) -> dict[str, dict[str, str]]:
    host.names("/run/systemd/system")
    units = properties(host.run(*SHOW))
    loaded = {name: unit for name, unit in units.items() if unit.get("LoadState") == "loaded"}
    if not loaded:
        raise Missing("none of the listed services is installed")
    return loaded


@CHECKS.warning("software.service-restarts", "Services do not restart again and again", 66, 101)
@remedy.monitor("`journalctl -u UNIT` gives the reason")
def _restarts(host: Host) -> Iterator[Finding]:
    for name, unit in _units(host).items():
        count = int(unit.get("NRestarts") or 0)
        yield checked(count <= MAX_RESTARTS, f"{count} restarts, expected at most {MAX_RESTARTS}", name)


@CHECKS.error("software.fabric-manager", "The fabric manager runs", 66)
@remedy.monitor("systemctl enable --now nvidia-fabricmanager (with nvlsm from NVLink 5 on), or nvidia-imex")
def _fabric_manager(host: Host) -> Iterator[Finding]:
    """Check that the service that sets up NVLink runs: fabric manager for NVSwitches, IMEX for a rack.

    The start script of the fabric manager of NVLink 5 starts the subnet manager nvlsm, which must run too.
    """
    sku = sku_of(host, (NVIDIA,))
    is_whole = sku is not None and len(gpu_addresses(host, NVIDIA)) == sku.gpus
    is_rack = sku is not None and sku.nvlink == "rack"
    has_subnet = _has_managed_switch(host) or (is_whole and sku is not None and sku.nvlink == "subnet")
    if not is_rack and not has_subnet and not _has_switch(host):
        raise Missing("no NVSwitch")
    name = "nvidia-imex" if is_rack else "nvidia-fabricmanager"
    unit = _units(host).get(name)
    if unit is None and any(process.startswith(MANAGER_PROCESSES[name]) for _, process, _ in processes(host)):
        yield passed("runs without a unit", name)
    else:
        state = "not installed" if unit is None else unit.get("ActiveState", "")
        yield checked(state == "active", f"{state}, expected active", name)
    if has_subnet and not is_rack:
        yield from _subnet_manager(host)


def _subnet_manager(host: Host) -> Iterator[Finding]:
    """Check that the process runs that the fabric manager's start script has started and noted."""
    if any(name == SUBNET_MANAGER for _, name, _ in processes(host)):
        yield passed("runs", SUBNET_MANAGER)
        return
    with suppress(Missing):
        pid = host.read(SUBNET_MANAGER_PID)
        yield failed(f"process {pid} has ended, which sets up the routes of NVLink", SUBNET_MANAGER)


def _has_switch(host: Host) -> bool:
    """Return whether an NVSwitch is a device on PCIe, as up to NVLink 4."""
    return any(
        host.read(f"{DEVICES}/{address}/class").startswith(SWITCH_CLASS)
        and host.read(f"{DEVICES}/{address}/vendor") == NVIDIA
        for address in host.names(DEVICES)
    )


def _has_managed_switch(host: Host) -> bool:
    """Return whether an NVSwitch is managed by an InfiniBand device, as from NVLink 5 on."""
    try:
        return any(manages_switches(host, device) for device in all_devices(host))
    except Missing:
        return False


@CHECKS.error("software.maintenance", "No maintenance is scheduled", 105, 106)
@remedy.monitor("Wait until it is over; `shutdown -c` cancels a shutdown")
def _maintenance(host: Host) -> Iterator[Finding]:
    host.names("/run")
    for path in MAINTENANCE:
        try:
            text = host.read(path)
        except Missing:
            continue
        yield failed(f"{path} is there: {text.splitlines()[0] if text else 'no reason'}")
        return
    yield passed("no shutdown is scheduled, and logins are allowed")


@CHECKS.warning("software.crash", "The kernel did not crash", 91)
@remedy.reboot("Read the messages, then remove them; replace the part that they name")
def _crash(host: Host) -> Iterator[Finding]:
    """Find the traces of a kernel panic: messages in the firmware's store (pstore), and crash dumps."""
    host.names("/sys/fs")
    paths = [f"/sys/fs/pstore/{name}" for name in _names(host, "/sys/fs/pstore") if "dmesg" in name]
    for folder in ("/var/crash", "/var/lib/kdump"):
        dumps = [name for name in _names(host, folder) if name[:1].isdigit() or name.startswith("vmcore")]
        paths += [f"{folder}/{name}" for name in dumps]
    yield checked(
        not paths, f"the kernel crashed: {', '.join(paths[:3])}" if paths else "no trace of a panic"
    )


def _names(host: Host, folder: str) -> list[str]:
    try:
        return host.names(folder)
    except Missing:
        return []


@CHECKS.error("software.container-runtime", "Containers see all GPUs", 82)
@remedy.monitor("nvidia-ctk runtime configure; restart the container runtime")
def _containers(host: Host) -> Iterator[Finding]:
    on_bus = len(gpu_addresses(host, NVIDIA))
    if not on_bus:
        raise Missing("no NVIDIA GPU on PCIe")
    text = host.run("nvidia-container-cli", "info")
    visible = sum(line.startswith("Device Index:") for line in text.splitlines())
    yield checked(visible == on_bus, f"containers see {visible} of {on_bus} GPUs")
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "NVRM version":
            yield stated("container_driver", value.strip())
