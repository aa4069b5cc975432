"""The GPUs of the recorded host: eight H100 in NVML's report, and two MI300X in sysfs.

`producers.audit.gpu.nvml` prints this report when it reads our stand-in for NVML's library (test_nvml.py).
"""

from __future__ import annotations

import json
from typing import Any

GPUS = 8
AMD_ADDRESSES = ("0000:b9:00.0", "0000:c9:00.0")


def address(index: int) -> str:
    """Return the PCI address of an NVIDIA GPU."""
    return f"0000:{0x19 + 0x10 * index:02x}:00.0"


def report() -> dict[str, Any]:
    """Return NVML's report on eight healthy GPUs."""
    common = {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "vbios": "96.00.99.00.01",
        "inforom": "G520.0200.00.05",
        "gsp_version": "550.127.08",
        "gsp_mode": [1, 1],
        "ecc_mode": [1, 1],
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "sram": [0, 0, 0],
        "remapped_rows": [0, 0, 0, 0],
        "retired_pages": 0,
        "retirement_pending": 0,
        "nvlink_active": [1] * 18,
        "nvlink_errors": [0] * 18,
        "nvlink_mbps": 26562,
        "peers": [0] * GPUS,
        "fabric": [3, 0, 2],
        "clock_reasons": 1,
        "temperature_c": 41,
        "slowdown_c": 87,
        "memory_temperature_c": 52,
        "memory_max_c": 95,
        "power_mw": 121_000,
        "power_limit_mw": 700_000,
        "power_default_mw": 700_000,
        "sm_max_mhz": 1980,
        "application_mhz": 1980,
        "application_default_mhz": 1980,
        "persistence": 1,
        "mig": [0, 0],
        "compute_mode": 0,
        "memory_used_bytes": 0,
        "memory_total_bytes": 85_520_809_984,
        "pcie_replays": 0,
        "processes": [],
        "graphics_processes": [],
    }
    return {
        "driver": "550.127.08",
        "cuda": "12.4",
        "nvml": "12.550.127.08",
        "gpus": [json.loads(json.dumps(common)) | {"address": address(index)} for index in range(GPUS)],
    }


def activity() -> dict[str, Any]:
    """Return NVML's samples of eight idle GPUs."""
    idle = {"power_limit_mw": 700_000, "utilisation_percent": [3] * 5, "power_mw": [121_000] * 5}
    return {"gpus": [json.loads(json.dumps(idle)) for _ in range(GPUS)]}


def files() -> dict[str, str | bytes]:
    """Return the files of the GPUs in sysfs and procfs."""
    contents: dict[str, str | bytes] = {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.08  Tue\n",
        "/sys/module/amdgpu/version": "6.8.5\n",
        "/sys/module/amdgpu/initstate": "live\n",
    }
    for index in range(GPUS):
        contents |= on_pcie(address(index), "0x030200", "0x10de", "0x2330")
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    contents[f"{nodes}/0/properties"] = "cpu_cores_count 96\nsimd_count 0\n"
    for number, place in enumerate(AMD_ADDRESSES, start=1):
        folder, peer = f"/sys/bus/pci/devices/{place}", 3 - number
        contents |= on_pcie(place, "0x120000", "0x1002", "0x74a1") | {
            f"{folder}/ras/umc_err_count": "ue: 0\nce: 12\n",
            f"{folder}/ras/gfx_err_count": "ue: 0\nce: 0\n",
            f"{folder}/ras/features": "feature mask: 0x3fff\n",
            f"{folder}/ras/gpu_vram_bad_pages": "0x00000001 : 0x00001000 : R\n",
            f"{folder}/vbios_version": "113-M3000100-102\n",
            f"{folder}/mem_info_vram_total": "206141652992\n",
            f"{folder}/current_compute_partition": "SPX\n",
            f"{folder}/hwmon/hwmon{number}/temp2_input": "48000\n",
            f"{folder}/hwmon/hwmon{number}/temp2_crit": "100000\n",
            f"{folder}/hwmon/hwmon{number}/temp2_label": "junction\n",
            f"{folder}/hwmon/hwmon{number}/power1_cap": "750000000\n",
            f"{folder}/hwmon/hwmon{number}/power1_cap_default": "750000000\n",
            f"{nodes}/{number}/properties": "cpu_cores_count 0\nsimd_count 1216\n",
            f"{nodes}/{number}/io_links/0/properties": f"type 2\nnode_from {number}\nnode_to 0\n",
            f"{nodes}/{number}/io_links/1/properties": f"type 11\nnode_from {number}\nnode_to {peer}\n",
        }
    return contents


def on_pcie(place: str, kind: str, vendor: str, device: str) -> dict[str, str | bytes]:
    """Return the sysfs files of a PCIe device that has full link width and speed, and no errors."""
    folder = f"/sys/bus/pci/devices/{place}"
    contents: dict[str, str | bytes] = {
        f"{folder}/class": f"{kind}\n",
        f"{folder}/vendor": f"{vendor}\n",
        f"{folder}/device": f"{device}\n",
        f"{folder}/revision": "0xa1\n",
    }
    for when in ("current", "max"):
        contents[f"{folder}/{when}_link_width"] = "16\n"
        contents[f"{folder}/{when}_link_speed"] = "32.0 GT/s PCIe\n"
    for name in ("fatal", "nonfatal", "correctable"):
        contents[f"{folder}/aer_dev_{name}"] = f"Undefined 0\nDLP 0\nTOTAL_ERR_{name.upper()} 0\n"
    return contents
