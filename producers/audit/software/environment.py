"""Software checks of what disturbs jobs: environment variables, programs, modules, load, zombies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from producers.audit.base import Checks, Finding, checked, failed, passed
from producers.audit.host.base import Host, Missing
from producers.audit.node.state import cpu_list
from schemas.audit_remedy import remedy

HARMFUL: Final[dict[str, tuple[str, str]]] = {
    "NCCL_IB_DISABLE": (r"[1-9]", "NCCL uses TCP instead of RDMA"),
    "NCCL_P2P_DISABLE": (r"[1-9]", "GPUs of a host exchange data through its memory"),
    "NCCL_SHM_DISABLE": (r"[1-9]", "NCCL uses the network within a host"),
    "NCCL_NET": (r"(?i)socket", "NCCL uses TCP instead of RDMA"),
    "NCCL_NET_GDR_LEVEL": (r"0|LOC", "NICs do not reach GPU memory"),
    "NCCL_SOCKET_IFNAME": (r"=?lo", "other hosts are not reached"),
    "NCCL_DEBUG": (r"(?i)trace", "each operation is logged"),
    "NCCL_MAX_NCHANNELS": (r"[1-4]", "few channels limit the bandwidth"),
    "NCCL_ALGO": (r"[^,;:]+", "the choice of algorithm is fixed for all jobs"),
    "NCCL_PROTO": (r"[^,;:]+", "the choice of protocol is fixed for all jobs"),
    "CUDA_LAUNCH_BLOCKING": (r"[1-9]", "kernels run one after another"),
    "CUDA_VISIBLE_DEVICES": (r".*", "jobs do not see all GPUs"),
    "CUDA_DEVICE_MAX_CONNECTIONS": (r"0", "no work queue"),
    "CUDA_INJECTION64_PATH": (r".+", "a profiler is loaded into each program"),
    "CUDA_PROFILE": (r"[1-9]", "each kernel is profiled"),
    "COMPUTE_PROFILE": (r"[1-9]", "each kernel is profiled"),
    "HIP_VISIBLE_DEVICES": (r".*", "jobs do not see all GPUs"),
    "ROCR_VISIBLE_DEVICES": (r".*", "jobs do not see all GPUs"),
    "HSA_ENABLE_SDMA": (r"0", "copies take processors of the GPU"),
    "HIP_LAUNCH_BLOCKING": (r"[1-9]", "kernels run one after another"),
    "AMD_SERIALIZE_KERNEL": (r"[1-9]", "kernels run one after another"),
    "LD_PRELOAD": (r".+", "a library is loaded into each program"),
    "MLX5_SINGLE_THREADED": (r"[1-9]", "verbs are not thread-safe"),
}
"""Variables that break or slow down every job on a host: the pattern of harmful values, and the effect."""
FILES: Final = ("/etc/environment", "/etc/nccl.conf", "/etc/profile")
FOLDERS: Final = ("/etc/profile.d", "/etc/environment.d")
SUFFIXES: Final = (".sh", ".csh", ".conf")
"""Suffixes of the files in these folders that shells and systemd read."""
DENIED_PROCESSES: Final[dict[str, str]] = {
    "Xorg": "a display server uses the GPU",
    "gnome-shell": "a desktop uses the GPU",
    "unattended-upgr": "packages change under a job",
    "packagekitd": "packages change under a job",
    "updatedb.mlocat": "it reads all file systems",
    "updatedb.plocat": "it reads all file systems",
    "cuda-gdb": "a debugger stops GPUs",
    "xmrig": "a coin miner",
    "stress-ng": "a load generator",
    "gpu_burn": "a load generator",
    "nvidia-bug-rep": "it stops GPUs while it reads them",
}
"""Programs that disturb a job on the same host, and how; names are cut to 15 characters as in /proc."""
DENIED_MODULES: Final[dict[str, str]] = {
    "nouveau": "it takes the GPU from NVIDIA's driver",
    "nvidiafb": "it takes the GPU from NVIDIA's driver",
    "rdma_rxe": "emulated RDMA beside real NICs",
}
MAX_ZOMBIE_SHARE: Final = 0.2
"""Largest share of processes that are zombies (gpud)."""
MIN_ZOMBIES: Final = 10
MAX_LOAD: Final = 2.0
"""Largest number of runnable processes per processor."""

_ASSIGNMENT: Final = re.compile(r"(?:export\s+|setenv\s+)?([A-Z][A-Z0-9_]*)(?:=|\s+)([^;#]*)")
CHECKS: Final = Checks()


def assignments(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each variable that a file sets; comments are left out."""
    for line in text.splitlines():
        match = _ASSIGNMENT.match(line.strip())
        if match:
            yield match[1], match[2].strip().strip("\"'")


def processes(host: Host) -> Iterator[tuple[str, str, str]]:
    """Yield (process id, name, state) of each process."""
    for pid in host.names("/proc"):
        if pid.isdigit():
            try:
                stat = host.read(f"/proc/{pid}/stat")
            except Missing:  # it has ended
                continue
            name, _, rest = stat.partition("(")[2].rpartition(")")
            yield pid, name, rest.split()[0]


def _texts(host: Host) -> Iterator[tuple[str, str]]:
    paths = [*FILES]
    for folder in FOLDERS:
        try:
            paths += [f"{folder}/{name}" for name in host.names(folder) if name.endswith(SUFFIXES)]
        except Missing:
            continue
    for path in paths:
        try:
            yield path, host.read(path)
        except Missing:
            continue


@CHECKS.error("software.environment", "No variable breaks all jobs", 108)
@remedy.monitor("Remove the line from the file")
def _variables(host: Host) -> Iterator[Finding]:
    any_denied = False
    host.names("/etc")
    for path, text in _texts(host):
        for name, value in assignments(text):
            pattern, effect = HARMFUL.get(name, ("(?!)", ""))
            if re.fullmatch(pattern, value):
                any_denied = True
                yield failed(f"{name}={value}: {effect}", path)
    if not any_denied:
        yield passed("no variable that breaks jobs")


@CHECKS.warning("software.programs", "No program disturbs jobs", 81, 104)
@remedy.monitor("End the program, and disable its service")
def _programs(host: Host) -> Iterator[Finding]:
    pids = {name: pid for pid, name, state in processes(host) if name in DENIED_PROCESSES and state != "Z"}
    for name, pid in pids.items():
        yield failed(f"process {pid}: {DENIED_PROCESSES[name]}", name)
    if not pids:
        yield passed("no program of the list runs")


@CHECKS.error("software.modules-denied", "No module disturbs GPUs and NICs", 81)
@remedy.monitor("Add the module to /etc/modprobe.d/blacklist.conf, then reboot")
def _denied_modules(host: Host) -> Iterator[Finding]:
    loaded = [line.split()[0] for line in host.read("/proc/modules").splitlines() if line]
    denied = [name for name in loaded if name in DENIED_MODULES]
    if "rdma_rxe" in denied and not {"mlx5_ib", "bnxt_re", "irdma", "efa"} & set(loaded):
        denied.remove("rdma_rxe")  # a test machine without a NIC of its own
    for name in denied:
        yield failed(DENIED_MODULES[name], name)
    if not denied:
        yield passed("no module of the list is loaded")


@CHECKS.warning("software.zombies", "Few ended processes remain (zombies)", 90)
@remedy.monitor("Restart their parent: `ps -eo ppid,pid,stat,comm`")
def _zombies(host: Host) -> Iterator[Finding]:
    states = [state for _, _, state in processes(host)]
    count = states.count("Z")
    is_few = count < MIN_ZOMBIES or count < MAX_ZOMBIE_SHARE * len(states)
    yield checked(is_few, f"{count} of {len(states)} processes have ended and are not collected")


@CHECKS.warning("software.load", "The load fits the processors", 104)
@remedy.monitor("`top` names the processes")
def _load(host: Host) -> Iterator[Finding]:
    load = float(host.read("/proc/loadavg").split()[2])
    count = len(cpu_list(host.read("/sys/devices/system/cpu/online")))
    limit = MAX_LOAD * count
    yield checked(load <= limit, f"load {load:g} in 15 minutes, expected at most {limit:g}")
