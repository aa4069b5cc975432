"""Finds the RDMA device of a NIC, and whether the NIC can be probed over this device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from producers.probe.rdma.gids import netdevs_of
from producers.probe.rdma.settings import RdmaProbeSettings
from producers.settings import NicSettings
from schemas.ids import nic_id

IMPORT_S: Final = 30.0
"""Timeout for importing pyverbs."""
SYSFS: Final = Path("/sys")


def rdma_device_of(nic: NicSettings, sysfs: Path = SYSFS) -> str | None:
    """Return a NIC's configured RDMA device, else the first on its network device; None if there is none."""
    if nic.rdma_device is not None:
        return nic.rdma_device
    if nic.netns is not None:
        return None
    devices = sorted(path.name for path in (sysfs / "class/infiniband").glob("*"))
    return next((device for device in devices if nic.device in netdevs_of(device, sysfs)), None)


def rdma_unavailable(settings: RdmaProbeSettings, nic: NicSettings, sysfs: Path = SYSFS) -> str | None:
    """Return one line that explains why a NIC cannot be probed over RDMA; None if probing can be tried."""
    name = nic_id(nic.host, nic.device)
    if settings.enabled == "off":
        return f"{name}: no RDMA probes: rdma_probes.enabled = 'off'"
    device = rdma_device_of(nic, sysfs)
    if device is None:
        return f"{name}: no RDMA probes: no RDMA device beneath {nic.device}"
    if not (sysfs / "class/infiniband" / device).exists():
        return f"{name}: no RDMA probes: {device}: no such RDMA device"
    if device == nic.device:
        return (
            f"{name}: no RDMA probes: the NIC is listed by its RDMA device, whose name the RDMA prober needs:"
            " expected its network device, with rdma_device in addition"
        )
    python = settings.verbs_python or sys.executable
    try:
        tried = subprocess.run(
            [python, "-I", "-c", "import pyverbs.device"],
            capture_output=True,
            text=True,
            timeout=IMPORT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name}: no RDMA probes: {python}: {error}"
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["no pyverbs"])[-1]
        return f"{name}: no RDMA probes: {python}: {last} (rdma_probes.verbs_python, or the extra 'rdma')"
    return None
