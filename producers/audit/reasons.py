"""Sentences that explain a missing file or program, and that state a remedy if a check could not be made.

The tables come first. They replace the errors of the operating system, which name a path and no reason.
"""

from __future__ import annotations

import re
from typing import Final

from producers.audit.host.base import Unreadable

ABSENT: Final[tuple[tuple[str, str], ...]] = (
    ("/sys/class/infiniband", "this host has no RDMA device"),
    ("/sys/bus/pci/devices$", "this host has no PCI device"),
    ("/proc/modules", "the kernel has no loadable modules"),
    ("/lib/modules", "the kernel has no modules of its own"),
    ("/run/systemd/system", "systemd does not run this host"),
    ("/sys/devices/system/edac/mc", "no memory controller reports errors (EDAC)"),
    ("/sys/devices/system/node", "the kernel knows no NUMA node"),
    (r"/sys/devices/system/cpu/cpu\d+/cpufreq", "the kernel does not set the frequency of processors"),
    ("/sys/class/nvme", "this host has no NVMe drive"),
    ("/sys/class/ptp", "this host has no hardware clock"),
    ("/sys/class/kfd", "the driver amdgpu has no compute node"),
    ("/sys/fs/fuse/connections", "no FUSE file system is mounted"),
    ("/sys/kernel/mm/transparent_hugepage", "the kernel has no transparent huge pages"),
    ("/proc/sys/kernel/numa_balancing", "the kernel does not balance NUMA nodes"),
    ("/proc/mdstat", "the kernel has no software RAID"),
    ("/proc/spl/kstat/zfs", "the kernel has no ZFS"),
    ("/proc/net/bonding", "this host has no bond"),
    ("/proc/net/stat/nf_conntrack|/proc/sys/net/netfilter", "the kernel tracks no connections"),
    ("/etc/ssh", "no OpenSSH server is installed"),
    ("/etc/munge", "munge is not installed"),
    ("/var/lib/kubelet", "no kubelet is installed"),
    ("/opt/ufm", "UFM is not installed"),
    ("/run/wpa_supplicant", "wpa_supplicant serves no interface"),
)
"""(Pattern of a path's beginning, why it is not there): the first that fits counts."""
ROOT: Final = re.compile(r"permission denied|not permitted|\broot\b", re.IGNORECASE)
"""Texts of what only root may read."""
HELP: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (ROOT, "Run it as root; the agent's service too"),
    (
        re.compile(r"no end within|still hangs|limit was reached"),
        "Find what it waits for: `dmesg`, and `cat /proc/PID/stack` of the command",
    ),
    (re.compile(r"not installed"), "Install the program that the text names"),
    (re.compile(r"at rest"), "Repeat the check while a job runs"),
    (
        re.compile(r"exit code|unexpected|lacks|prints no|expected"),
        "Run the command or read the file that the text names: another version may print other text",
    ),
)
"""(Pattern of a text, what helps): the first that fits counts."""
OTHERWISE: Final = "Run the check again on the idle host: `fabrictime audit --only {}`"
_ABSENT: Final = tuple((re.compile(pattern), sentence) for pattern, sentence in ABSENT)
_ERRNO: Final = re.compile(
    r"^(/.*?): (?:No such file or directory|Not a directory|Invalid argument|No such device(?: or address)?"
    r"|No such process)$",
    re.DOTALL,
)


def absence(text: str) -> str:
    """Return a sentence for the error of a missing file; return any other text unchanged."""
    match = _ERRNO.match(text)
    if match is None:
        return text
    path = match[1]
    return next(
        (sentence for pattern, sentence in _ABSENT if pattern.match(path)), f"this host has no {path}"
    )


def mismatch(error: Exception) -> str:
    """Return a sentence for content of another form than expected, without the words of Python."""
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, KeyError):
        return f"unexpected content: it lacks {error.args[0]!r}" if error.args else "unexpected content"
    if isinstance(error, IndexError):
        return "unexpected content: it lacks a column or line"
    if isinstance(error, AttributeError | TypeError):
        return "unexpected content: a value is of another type"
    if isinstance(error, ArithmeticError):
        return "unexpected content: a number is zero or too large"
    return f"unexpected content: {error}" if str(error) else "unexpected content"


def help_for(check_id: str, text: str) -> str:
    """Return what would help a check that could not be made. `text`: why it could not."""
    return next((sentence for pattern, sentence in HELP if pattern.search(text)), OTHERWISE.format(check_id))
