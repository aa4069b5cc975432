"""Faults of GPUs, each with the audit check that must find it.

The faults in LIBRARY change a value of GPU 3 in NVML's report. Our stand-in for NVML's library (fake_nvml.c)
can show the same faults, and test_nvml.py compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from fabrictime.testbed.audit.recorded import RecordedHost
from fabrictime.testbed.audit.recorded_gpu import AMD_ADDRESSES, GPUS
from producers.audit.gpu.nvml import ACTIVITY
from producers.audit.host.base import NVML

BAD = 3
LINKS = [1] * 18
LIBRARY: dict[str, tuple[str, dict[str, Any]]] = {
    "lost": ("gpu.answers", {"lost": "GPU is lost"}),
    "other model": ("gpu.same", {"name": "NVIDIA H100 PCIe"}),
    "other vbios": ("gpu.same", {"vbios": "96.00.61.00.01"}),
    "no persistence": ("gpu.persistence", {"persistence": 0}),
    "compute prohibited": ("gpu.compute-mode", {"compute_mode": 2}),
    "power cap": ("gpu.power-limit", {"power_limit_mw": 500_000}),
    "retirement pending": ("gpu.retired-pages", {"retirement_pending": 1}),
    "retired pages": ("gpu.retired-pages", {"retired_pages": 11}),
    "ECC off": ("gpu.ecc-mode", {"ecc_mode": [0, 1]}),
    "uncorrectable ECC": ("gpu.ecc-uncorrectable", {"ecc_uncorrected": 2}),
    "many ECC": ("gpu.ecc-correctable", {"ecc_corrected": 30_000_000}),
    "SRAM": ("gpu.sram", {"sram": [0, 0, 1]}),
    "many remaps": ("gpu.row-remap-failure", {"remapped_rows": [0, 600, 0, 0]}),
    "remap failed": ("gpu.row-remap-failure", {"remapped_rows": [0, 0, 0, 1]}),
    "remap pending": ("gpu.row-remap", {"remapped_rows": [0, 0, 1, 0]}),
    "MIG on": ("gpu.mig", {"mig": [1, 1]}),
    "GSP off": ("gpu.gsp", {"gsp_mode": [0, 1]}),
    "hot": ("gpu.temperature", {"temperature_c": 86}),
    "hot memory": ("gpu.memory-temperature", {"memory_temperature_c": 96}),
    "low clock": ("gpu.clock", {"sm_max_mhz": 1155}),
    "lowered clock": ("gpu.clock-limit", {"application_mhz": 1200}),
    "fewer links": ("gpu.nvlinks", {"nvlink_active": LINKS[1:], "nvlink_errors": [0] * 17}),
    "link down": ("gpu.nvlinks", {"nvlink_active": [*LINKS[:5], 0, *LINKS[6:]]}),
    "link errors": ("gpu.nvlink-errors", {"nvlink_errors": [*[0] * 5, 9, *[0] * 12]}),
    "slow links": ("gpu.nvlink-speed", {"nvlink_mbps": 20_000}),
    "fabric in progress": ("gpu.fabric", {"fabric": [2, 0, 2]}),
    "fabric degraded": ("gpu.fabric", {"fabric": [3, 0, 1]}),
    "power brake": ("gpu.throttle", {"clock_reasons": 0x80}),
    "thermal slowdown": ("gpu.throttle", {"clock_reasons": 0x40}),
    "orphan memory": ("gpu.orphan-memory", {"memory_used_bytes": 40 << 30}),
    "busy": ("gpu.idle", {"processes": [812]}),
    "graphics": ("gpu.graphics", {"graphics_processes": [812]}),
}


def changed(report: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Change the values of the bad GPU in a report, in place; return the report."""
    old = report["gpus"][BAD]
    report["gpus"][BAD] = values if "lost" in values else {**old, **values}
    return report


def _reported(change: Callable[[dict[str, Any]], object]) -> Callable[[RecordedHost], None]:
    def plant(host: RecordedHost) -> None:
        report = json.loads(host.commands[NVML,])
        change(report)
        host.commands[NVML,] = json.dumps(report)

    return plant


def no_peers(report: dict[str, Any]) -> None:
    """Remove the peer-to-peer access between the bad GPU and all others, in both directions."""
    for index, gpu in enumerate(report["gpus"]):
        gpu["peers"] = [5 if index != BAD else 0 if other == BAD else 5 for other in range(GPUS)]
        if index != BAD:
            gpu["peers"] = [5 if other == BAD else 0 for other in range(GPUS)]


def _amd(name: str, content: str) -> Callable[[RecordedHost], None]:
    return lambda host: host.files.__setitem__(f"/sys/bus/pci/devices/{AMD_ADDRESSES[0]}/{name}", content)


def _no_xgmi(host: RecordedHost) -> None:
    del host.files["/sys/class/kfd/kfd/topology/nodes/1/io_links/1/properties"]


def _no_simd(host: RecordedHost) -> None:
    """Remove a GPU, with its links, from the amdgpu driver's topology."""
    host.files = {path: text for path, text in host.files.items() if "/topology/nodes/2/" not in path}


def _module_gone(host: RecordedHost) -> None:
    host.files["/sys/module/amdgpu/initstate"] = "going\n"


def stalled(host: RecordedHost) -> None:
    """Make the bad GPU show 100% utilisation, as if it waited in a collective."""
    activity = json.loads(host.commands[NVML, ACTIVITY])
    activity["gpus"][BAD]["utilisation_percent"] = [100] * 5
    host.commands[NVML, ACTIVITY] = json.dumps(activity)


GPU_FAULTS: dict[str, tuple[str, Callable[[RecordedHost], None]]] = {
    **{
        f"GPU: {name}": (check_id, _reported(partial(changed, values=values)))
        for name, (check_id, values) in LIBRARY.items()
    },
    "GPU: missing": ("gpu.count", _reported(lambda report: report["gpus"].pop())),
    "GPU: driver mismatch": ("gpu.versions", _reported(lambda report: report.update(driver="570.86.15"))),
    "GPU: stalled collective": ("gpu.stalled", stalled),
    "GPU: no peers": ("gpu.peers", _reported(no_peers)),
    "AMD: uncorrectable": ("gpu.amd-ecc", _amd("ras/umc_err_count", "ue: 1\nce: 0")),
    "AMD: bad pages": ("gpu.amd-bad-pages", _amd("ras/gpu_vram_bad_pages", "0x00000001 : 0x00001000 : F")),
    "AMD: hot": ("gpu.amd-temperature", _amd("hwmon/hwmon1/temp2_input", "99000")),
    "AMD: power cap": ("gpu.amd-power-limit", _amd("hwmon/hwmon1/power1_cap", "500000000")),
    "AMD: other vbios": ("gpu.amd-same", _amd("vbios_version", "113-M3000100-101")),
    "AMD: no link": ("gpu.amd-xgmi", _no_xgmi),
    "AMD: not driven": ("gpu.amd-count", _no_simd),
    "AMD: module": ("gpu.amd-driver", _module_gone),
}
