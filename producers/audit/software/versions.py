"""Software checks of versions: kernel, packages, libraries, drivers, firmware, sysctls.

The versions are facts that are compared across the fleet. On one host a check fails only for a contradiction:
a kernel without its modules, a half installed package, two versions of one library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

from producers.audit.base import Checks, Fact, Finding, checked, passed, stated
from producers.audit.host.base import Host, Missing, Unreadable
from schemas.audit_remedy import remedy

PACKAGES: Final = re.compile(
    r"^(lib)?(nccl|rccl|nvidia|cuda-(drivers|toolkit|runtime)|datacenter-gpu-manager|rocm|amdgpu|ucx|mlnx|doca"
    r"|rdma-core|ibverbs|libibverbs|mft|openmpi|gdrcopy|gdrdrv|slurm|kubelet|containerd|docker-ce|efa|libfabric"
    r"|enroot|pyxis|linux-image)"
)
"""Packages whose versions are compared across the fleet."""
INSTALLED: Final = "i"
"""Second letter of dpkg's state for an installed package; the first is what the administrator wants."""
LIBRARY_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/opt/rocm/lib",
    "/opt/amazon/efa/lib",
    "/opt/amazon/ofi-nccl/lib",
)
LIBRARIES: Final = ("libnccl", "libnccl-net", "librccl", "libucp", "libfabric", "libibverbs", "libcuda")
MODULES: Final = (
    "nvidia", "nvidia_peermem", "gdrdrv", "amdgpu", "mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "bnxt_re",
    "irdma", "efa", "lustre",
)  # fmt: skip
"""Kernel modules whose versions are compared. Modules that belong to the kernel have none."""
ONE_PACKAGE: Final = ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs")
"""Modules of one driver package: mixed versions do not work together."""
SYSCTLS: Final[dict[str, tuple[Callable[[int], bool], str]]] = {
    "vm/zone_reclaim_mode": (lambda value: value == 0, "0"),
    "vm/overcommit_memory": (lambda value: value != 2, "0 or 1"),
    "vm/max_map_count": (lambda value: value >= 65_530, "at least 65530"),
    "vm/swappiness": (lambda value: value <= 60, "at most 60"),
    "kernel/threads-max": (lambda value: value >= 100_000, "at least 100000"),
    "net/core/rmem_max": (lambda value: value >= 212_992, "at least 212992"),
    "net/core/wmem_max": (lambda value: value >= 212_992, "at least 212992"),
    "net/core/somaxconn": (lambda value: value >= 128, "at least 128"),
}
"""Sysctls that slow down or end jobs at other values than these: whether a value is right, and text."""
MAIN_FIRMWARE: Final = "fw.version"
NO_DEVLINK: Final = "Failed to connect to devlink Netlink"
"""Text of iproute2's devlink.c where the kernel has no such family: it was built without devlink."""
OWN_OPTIONS: Final = ("BOOT_IMAGE=", "root=", "resume=", "initrd=", "ip=", "BOOTIF=", "systemd.machine_id=")
"""Prefixes of kernel options whose values differ from host to host by design."""
COMPARED: Final = ("vm/nr_hugepages", "net/ipv4/tcp_mtu_probing", "kernel/pid_max")
CHECKS: Final = Checks(limit_s=20.0)


def os_name(text: str) -> str:
    """Return the operating system's name in the text of /etc/os-release."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"'")
    raise ValueError("/etc/os-release: no PRETTY_NAME")


def packages(text: str) -> dict[str, tuple[str, str]]:
    """Return (version, state) by name of the compared packages, from the output of `dpkg-query` or `rpm`."""
    package_versions = {}
    for line in text.splitlines():
        name, number, state = line.split("\t")
        if PACKAGES.match(name) and state.strip() not in ("un", "rc"):
            package_versions[name] = number, state.strip()
    return package_versions


def library_version(file: str) -> tuple[str, str] | None:
    """Return name and version of a library file such as `libnccl.so.2.21.5`; None for a link's name."""
    name, _, number = file.partition(".so.")
    return (name, number) if name in LIBRARIES and number.count(".") >= 1 else None


class Firmware(NamedTuple):
    """A part of a device's firmware, by devlink's name such as fw.mgmt. `stored`: empty if it states none."""

    device: str
    name: str
    running: str
    stored: str


def firmware_parts(text: str) -> list[Firmware]:
    """Return the parts of each device's firmware, from the output of `devlink --json dev info`.

    Drivers name the parts differently: mlx5 has fw.version, bnxt and ice have fw.mgmt (devlink-info.rst).
    A part that never changes is stated as fixed.
    """
    parts = []
    for device, info in json.loads(text)["info"].items():
        versions: dict[str, dict[str, Any]] = info.get("versions", {})
        fixed, running, stored = (versions.get(kind) or {} for kind in ("fixed", "running", "stored"))
        for name, number in {**fixed, **running}.items():
            if str(name).startswith("fw"):
                parts.append(Firmware(str(device), str(name), str(number), str(stored.get(name, ""))))
    return parts


MODULE_LIST: Final = "modules.dep"
"""File of each installed kernel. A removed one may leave a folder with modules of others, such as DKMS's."""


@CHECKS.error("software.kernel", "The running kernel has its modules", 92)
@remedy.reboot("Reboot into the installed kernel")
def _kernel(host: Host) -> Iterator[Finding]:
    release = host.read("/proc/sys/kernel/osrelease")
    has_modules = release in host.names("/lib/modules") and MODULE_LIST in host.names(
        f"/lib/modules/{release}"
    )
    yield checked(has_modules, f"kernel {release}, expected /lib/modules/{release}/{MODULE_LIST}")
    yield stated("kernel", release)
    yield stated("os", os_name(host.read("/etc/os-release")))
    yield stated("kernel_command_line", _without_root(host.read("/proc/cmdline")))
    try:
        yield stated("fabrictime", version("fabrictime"))
    except PackageNotFoundError:
        yield passed("fabrictime runs from its sources")


def _without_root(line: str) -> str:
    """Return a kernel command line without what differs between hosts by design: image, disks, identity."""
    return " ".join(part for part in line.split() if not part.startswith(OWN_OPTIONS))


@CHECKS.error("software.packages", "Packages are completely installed", 57, 92)
@remedy.monitor("dpkg --configure -a")
def _packages(host: Host) -> Iterator[Finding]:
    try:
        text = host.run("dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${db:Status-Abbrev}\n")
    except Missing:
        text = host.run("rpm", "--query", "--all", "--queryformat=%{NAME}\t%{VERSION}-%{RELEASE}\tii\n")
    package_versions = packages(text)
    for name, (number, state) in package_versions.items():
        if state.endswith(INSTALLED):
            yield stated(f"package_{name}", number)
        else:
            yield checked(False, f"{name} {number} is in state {state}, expected ii or hi", name)
    if not package_versions:
        yield passed("no package of GPUs, RDMA or schedulers")


@CHECKS.warning("software.libraries", "One version of each communication library", 57, 92)
@remedy.monitor("Remove the other version; jobs may load either")
def _libraries(host: Host) -> Iterator[Finding]:
    versions: dict[str, set[str]] = {}
    for folder in LIBRARY_FOLDERS:
        try:
            files = host.names(folder)
        except Missing:
            continue
        for name, number in filter(None, map(library_version, files)):
            versions.setdefault(name, set()).add(number)
    if not versions:
        raise Missing("no communication library in the system's folders")
    for name, numbers in sorted(versions.items()):
        every = ", ".join(sorted(numbers))
        yield replace(
            checked(len(numbers) == 1, f"{every}, expected one version", name), fact=Fact(name, every)
        )
    for name, path in (("cuda", "/usr/local/cuda/version.json"), ("rocm", "/opt/rocm/.info/version")):
        try:
            content = host.read(path)
        except Missing:
            continue
        yield stated(name, json.loads(content)["cuda"]["version"] if name == "cuda" else content)


@CHECKS.error("software.module-versions", "RDMA modules are of one version", 57, 92)
@remedy.reboot("Reinstall the driver package, then reboot")
def _modules(host: Host) -> Iterator[Finding]:
    versions = {}
    for name in MODULES:
        try:
            versions[name] = host.read(f"/sys/module/{name}/version")
        except Missing:
            continue
    if not versions:
        raise Missing("no module with a version of its own")
    group = {versions[name] for name in ONE_PACKAGE if name in versions}
    yield checked(
        len(group) <= 1, f"RDMA modules of versions {', '.join(sorted(group)) or 'none'}, expected one"
    )
    for name, number in versions.items():
        yield stated(f"module_{name}", number)


@CHECKS.warning("software.sysctls", "Sysctls do not slow down jobs", 100)
@remedy.monitor("Set the value in /etc/sysctl.d, then `sysctl --system`")
def _sysctls(host: Host) -> Iterator[Finding]:
    for name, (is_right, expected) in SYSCTLS.items():
        value = int(host.read(f"/proc/sys/{name}"))
        subject = name.replace("/", ".")
        finding = checked(is_right(value), f"{value}, expected {expected}", subject)
        yield replace(finding, fact=Fact(subject, str(value), float(value)))
    for name in COMPARED:
        try:
            yield stated(name.replace("/", "."), int(host.read(f"/proc/sys/{name}")))
        except Missing:
            continue


@CHECKS.warning("software.nic-firmware", "NICs run their stored firmware", 18, 106)
@remedy.reset("mlxfwreset, or a cold reboot, activates the stored firmware")
def _firmware(host: Host) -> Iterator[Finding]:
    try:
        parts = firmware_parts(host.run("devlink", "--json", "dev", "info"))
    except Unreadable as error:
        if NO_DEVLINK in str(error):
            raise Missing("this kernel has no devlink") from error
        raise
    if not parts:
        raise Missing("no device states its firmware (devlink)")
    for part in parts:
        is_pending = part.stored not in ("", part.running)
        text = f"runs {part.name} {part.running}" + (f", stored is {part.stored}" if is_pending else "")
        fact = Fact("firmware" if part.name == MAIN_FIRMWARE else part.name, part.running)
        yield replace(checked(not is_pending, text, part.device), fact=fact)
