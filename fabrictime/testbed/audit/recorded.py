"""A recorded host: files and commands of a healthy machine with GPUs and RDMA NICs.

The content was written from the formats in the kernel's documentation, not copied from a machine. The host
has devices of more vendors than a real machine, so that every check has something to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy, deepcopy

from fabrictime.testbed.audit import recorded_active, recorded_gpu, recorded_machine, recorded_services
from fabrictime.testbed.audit.recorded_network import READS, RecordedNetwork
from producers.audit.gpu.nvml import ACTIVITY
from producers.audit.host.base import NVML, TRAFFIC, Missing, Unreadable
from producers.audit.load.traffic_plan import TrafficRound
from producers.audit.logs.unknown_lines import LOG
from producers.audit.settings import CheckSettings

GID = "fe80:0000:0000:0000:0a00:27ff:fe00:000{}"
ADDRESS_GID = "0000:0000:0000:0000:0000:ffff:0a00:0{}02"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
PORT_COUNTERS = (
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
)
"""Error counters of an RDMA port, as the kernel names them."""
UNITS = ("systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--no-pager")


class RecordedHost(RecordedNetwork):
    """A host with the interface of `Host`, whose files, commands, file systems and network are constants."""

    def __init__(self, files: Mapping[str, str | bytes], commands: Mapping[tuple[str, ...], str]) -> None:
        super().__init__()
        self.files = dict(files)
        self.commands = dict(commands)
        self.later: dict[str, str] = {}
        """New contents of files that change between two readings of a counter, by path."""
        self.under_load: dict[str, str] = {}
        """New contents of files that change during a round of traffic, by path."""
        self.links: dict[str, str] = {}
        """Symbolic links, from a device's folder at its bus to its place in the device tree."""
        self.settings = CheckSettings(volume_namespace="storage-audit")
        self.status = 0
        self.spaces = {"/": (10**12, 5 * 10**11, 10**6, 9 * 10**5)}
        self.denied: set[str] = set()
        """Paths, commands and network reads that fail with 'permission denied'."""
        self.slow: set[tuple[str, ...]] = set()
        """Commands that exceed their time limit."""
        self.refusals = 0
        self.touched: set[str] = set()
        """Names of everything that was read."""
        self._tree: dict[str, set[str]] = {}
        self._indexed: set[str] = set()

    def readable(self) -> list[str]:
        """Return the names of all files, commands, links and reads to which access can be denied."""
        commands = {command[0] for command in self.commands}
        return sorted([*self.files, *commands, "adjtimex", *self.links, *READS])

    def copy(self) -> RecordedHost:
        """Return a copy of the host that can be changed independently."""
        other = copy(self)
        other.files, other.commands = dict(self.files), dict(self.commands)
        other.spaces, other.links, other.denied = dict(self.spaces), dict(self.links), set()
        other.slow, other.later = set(self.slow), dict(self.later)
        other.under_load = dict(self.under_load)
        other.network = deepcopy(self.network)
        other.touched = set()
        return other

    def _check(self, name: str) -> None:
        self.touched.add(name)
        if name in self.denied:
            self.refusals += 1
            raise Unreadable(f"{name}: Permission denied")

    def read(self, path: str) -> str:
        """Return the content of a file as text."""
        return self.read_bytes(path).decode("utf-8", "replace").strip("\n\x00 ")

    def read_bytes(self, path: str) -> bytes:
        """Return the content of a file as bytes."""
        self._check(path)
        if path not in self.files:
            raise Missing(f"{path}: No such file or directory")
        content = self.files[path]
        return content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")

    def names(self, path: str) -> list[str]:
        """Return the names of the entries in a directory."""
        self._check(path)
        if self.files.keys() != self._indexed:
            self._index()
        if path not in self._tree:
            raise Missing(f"{path}: No such file or directory")
        return sorted(self._tree[path])

    def _index(self) -> None:
        self._tree, self._indexed = {}, set(self.files)
        for path in self.files:
            folder, _, name = path.rpartition("/")
            while name and name not in self._tree.setdefault(folder, set()):
                self._tree[folder].add(name)
                folder, _, name = folder.rpartition("/")

    def space(self, path: str) -> tuple[int, int, int, int]:
        """Return (size, free bytes, inodes, free inodes) of a file system."""
        self._check(path)
        if path not in self.spaces:
            raise Missing(f"{path}: No such file or directory")
        return self.spaces[path]

    def now_s(self) -> float:
        """Return a time, in s since the Unix epoch, at which the host's certificates are valid."""
        return recorded_services.NOW_S

    def pause(self, wanted_s: float) -> float:
        """Apply the changes in `later` instead of waiting; return `wanted_s`."""
        self.files |= self.later
        return wanted_s

    def clock_status(self) -> int:
        """Return the status bits of the system clock, as adjtimex does."""
        self._check("adjtimex")
        return self.status

    def target(self, path: str) -> str:
        """Return the target of a symbolic link."""
        self._check(path)
        if path not in self.links:
            raise Missing(f"{path}: No such file or directory")
        return self.links[path]

    def run(self, *command: str) -> str:
        """Return the recorded output of a command."""
        self._check(command[0])
        if command in self.slow:
            raise Unreadable(f"{' '.join(command)}: no end within 5 s")
        if command not in self.commands:
            raise Missing(f"{command[0]}: not installed")
        return self.commands[command]

    def load(self, limit_s: float, *command: str) -> str:
        """Return the recorded output of a load program of an active check."""
        if command[0] == TRAFFIC:
            self.files |= self.under_load
        return self.run(*command)

    def traffic_round(self) -> TrafficRound:
        """Return a round of traffic between hosts in which this host comes first."""
        return recorded_active.ROUND


def _files() -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {
        "/proc/sys/kernel/tainted": "0\n",
        "/proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
        "/proc/sys/kernel/numa_balancing": "0\n",
        "/proc/sys/kernel/pid_max": "4194304\n",
        "/proc/sys/fs/file-nr": "12000\t0\t9223372\n",
        "/proc/sys/net/netfilter/nf_conntrack_count": "120\n",
        "/proc/sys/net/netfilter/nf_conntrack_max": "262144\n",
        "/proc/loadavg": "3.10 2.90 2.80 4/2900 81220\n",
        "/proc/640/stat": "640 (slurmd) S 1 640 640 0 -1\n",
        "/proc/640/limits": (
            "Limit                     Soft Limit           Hard Limit           Units\n"
            "Max open files            1048576              1048576              files\n"
            "Max locked memory         8388608              unlimited            bytes\n"
        ),
        "/proc/modules": (
            "nvidia_peermem 16384 0 - Live 0x0\nnvidia 56000000 900 nvidia_peermem, Live 0x0\n"
            "nf_tables 376832 12 nft_ct, Live 0x0\n"
        ),
        "/proc/meminfo": (
            "MemTotal:       2113000000 kB\nMemAvailable:   2050000000 kB\nSwapTotal:      0 kB\n"
            "SwapFree:       0 kB\nHardwareCorrupted:     0 kB\nHugePages_Total:       0\n"
        ),
        "/proc/vmstat": "nr_free_pages 500\noom_kill 0\n",
        "/proc/uptime": "860000.12 9000000.00\n",
        "/proc/1/stat": "1 (systemd) S 0 1 1 0 -1\n",
        "/proc/812/stat": "812 (a (b) D) R 1 812 812 0 -1\n",
        "/proc/mounts": (
            "proc /proc proc rw,nosuid 0 0\n/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n"
            "nfs1:/home /shared\\040home nfs4 rw,hard 0 0\nnfs1:/data /data nfs4 rw,hard 0 0\n"
        ),
        "/proc/mdstat": (
            "Personalities : [raid1]\nmd0 : active raid1 nvme2n1[1] nvme1n1[0]\n"
            "      3750606144 blocks super 1.2 [2/2] [UU]\n\nunused devices: <none>\n"
        ),
        "/etc/fstab": (
            "# device point type options\n/dev/nvme0n1p2 / ext4 defaults 0 1\n"
            "nfs1:/home /shared\\040home nfs4 rw,hard 0 0\n/dev/cdrom /mnt udf noauto 0 0\n"
        ),
        "/run/systemd/system/.keep": "",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/sys/devices/system/cpu/present": "0-1\n",
        "/sys/devices/system/cpu/online": "0-1\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
        "/sys/devices/system/edac/mc/mc0/ue_count": "0\n",
        "/sys/devices/system/edac/mc/mc0/ce_count": "3\n",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "/sys/class/nvme/nvme0/state": "live\n",
        "/sys/fs/fuse/connections/52/waiting": "0\n",
        "/sys/fs/fuse/connections/52/max_background": "12\n",
        "/dev/infiniband/rdma_cm": "",
    }
    files |= recorded_gpu.files() | recorded_machine.files() | recorded_active.files()
    files["/sys/bus/pci/devices/0000:00:01.0/class"] = "0x060400\n"
    files["/sys/bus/pci/devices/0000:00:01.0/config"] = bridge(redirects=False)
    for number, (device, layer) in enumerate(
        (("mlx5_0", "Ethernet"), ("mlx5_1", "Ethernet"), ("mlx5_2", "InfiniBand"), ("mlx5_3", "InfiniBand"))
    ):
        files |= _port(device, number, layer)
    return files


def _port(device: str, number: int, layer: str) -> dict[str, str | bytes]:
    folder, interface = f"/sys/class/infiniband/{device}/ports/1", f"eth{number}"
    files: dict[str, str | bytes] = {
        f"{folder}/state": "4: ACTIVE\n",
        f"{folder}/phys_state": "5: LinkUp\n",
        f"{folder}/rate": "400 Gb/sec (4X NDR)\n",
        f"{folder}/link_layer": f"{layer}\n",
        f"{folder}/gids/0": GID.format(number) + "\n",
        f"{folder}/gids/1": GID.format(number) + "\n",
        f"{folder}/gids/2": ADDRESS_GID.format(number) + "\n",
        f"{folder}/gids/3": ADDRESS_GID.format(number) + "\n",
        f"{folder}/gids/4": NO_GID + "\n",
        f"/sys/class/infiniband_verbs/uverbs{number}/ibdev": f"{device}\n",
        f"/dev/infiniband/uverbs{number}": "",
    }
    for name in PORT_COUNTERS:
        files[f"{folder}/counters/{name}"] = "0\n"
    if layer == "InfiniBand":
        return files | {f"{folder}/pkeys/0": "0xffff\n", f"{folder}/pkeys/1": "0x0000\n"}
    return files | {
        f"{folder}/gid_attrs/types/0": "IB/RoCE v1\n",
        f"{folder}/gid_attrs/types/1": "RoCE v2\n",
        f"{folder}/gid_attrs/types/2": "IB/RoCE v1\n",
        f"{folder}/gid_attrs/types/3": "RoCE v2\n",
        f"{folder}/gid_attrs/ndevs/0": f"{interface}\n",
        f"/sys/kernel/config/rdma_cm/{device}/ports/1/default_roce_mode": "RoCE v2\n",
    }


def bridge(*, redirects: bool) -> bytes:
    """Return a PCI bridge's configuration space: an AER capability, then ACS with or without redirection."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x1 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = (0xD | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = (0x1D if redirects else 0x01).to_bytes(2, "little")
    return bytes(space)


HEALTHY = RecordedHost(
    _files() | recorded_services.files(),
    {
        LOG: recorded_machine.WARNINGS,
        UNITS: "",
        (NVML,): json.dumps(recorded_gpu.report()),
        (NVML, ACTIVITY): json.dumps(recorded_gpu.activity()),
        **recorded_machine.commands(),
        **recorded_active.commands(),
        **recorded_services.COMMANDS,
    },
)
HEALTHY.links |= recorded_services.LINKS | recorded_machine.links()
