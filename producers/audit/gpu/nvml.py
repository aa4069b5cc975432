"""Reads the state of all NVIDIA GPUs by NVML and prints it as one line of JSON.

With the argument `activity` it prints utilisation and power over some seconds instead.

It runs as a process of its own, so that a driver that hangs blocks this process and not the agent. Each value
is read by itself. It is null if the GPU does not support it, and `{"error": text}` if the read fails.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

ACTIVITY: Final = "activity"
"""Argument that selects samples of utilisation and power."""
SAMPLES: Final = 5
EVERY_S: Final = 1.2
"""Time between samples: NVML averages utilisation over one second."""

MEMORY_TEMPERATURE: Final = 82
LINK_SPEED: Final = 90
"""NVML's numbers of two fields: the memory's temperature, and an NVLink's speed in MB/s."""
PEER_READ: Final = 0
"""NVML's index of reads between GPUs, the access whose status is read."""
LINK_ERRORS: Final = (206, 207, 208, 209, 210, 211, 214)
"""Fields with a link's error counters on GPUs since B200; the field's scope is the link's number."""
OLD_LINK_ERRORS: Final = 4
"""Number of a link's error counters on older GPUs: replay, recovery, CRC of flits and of data."""

Reader = Callable[[Any], Any]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def pci_address(bus_id: str) -> str:
    """Return a PCI address with four digits for the domain, as in sysfs; NVML writes eight."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _field(nvml: Any, gpu: Any, number: int, scope: int = 0) -> int | float:
    field = nvml.nvmlDeviceGetFieldValues(gpu, [(number, scope)])[0]
    if field.nvmlReturn:
        raise nvml.NVMLError(field.nvmlReturn)
    kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    value: int | float = getattr(field.value, kinds[field.valueType])
    return value


def _links(nvml: Any, gpu: Any) -> Iterator[int]:
    """Yield the state of each NVLink, up to the first link number that the GPU does not have."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            yield int(nvml.nvmlDeviceGetNvLinkState(gpu, link))
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            if not link:
                raise
            return


def _link_errors(nvml: Any, gpu: Any) -> list[int]:
    """Return, for each link, the sum of its error counters."""
    return [_errors_of_link(nvml, gpu, link) for link, _ in enumerate(_links(nvml, gpu))]


def _errors_of_link(nvml: Any, gpu: Any, link: int) -> int:
    counts = []
    for number in (*range(OLD_LINK_ERRORS), *LINK_ERRORS):
        try:
            counts.append(
                int(nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, number))
                if number < OLD_LINK_ERRORS
                else int(_field(nvml, gpu, number, link))
            )
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
    if not counts:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return sum(counts)


def _peers(nvml: Any, gpu: Any, gpus: list[Any]) -> list[int]:
    """Return the status of peer-to-peer reads between this GPU and each GPU; 0 means that reads work."""
    own = nvml.nvmlDeviceGetIndex(gpu)
    return [
        int(nvml.nvmlDeviceGetP2PStatus(gpu, other, PEER_READ)) if index != own else nvml.NVML_P2P_STATUS_OK
        for index, other in enumerate(gpus)
        if other is not None
    ]


def _fabric(nvml: Any, gpu: Any) -> list[int]:
    """Return [state, status, health mask] of a GPU's membership in the NVLink fabric."""
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu, nvml.byref(info))
    if info.state == nvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return [int(info.state), int(info.status), int(info.healthMask)]


def _sram(nvml: Any, gpu: Any) -> list[int]:
    """Return [corrected, uncorrectable, over limit]: SRAM errors since manufacture; 1 over NVIDIA's limit."""
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(gpu, nvml.byref(status))
    uncorrectable = int(status.aggregateUncParity) + int(status.aggregateUncSecDed)
    return [int(status.aggregateCor), uncorrectable, int(status.bThresholdExceeded)]


def _readers(nvml: Any, gpus: list[Any]) -> dict[str, Reader]:
    def ecc(kind: int, period: int) -> Reader:
        return lambda gpu: int(nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, period))

    def threshold(kind: int) -> Reader:
        return lambda gpu: int(nvml.nvmlDeviceGetTemperatureThreshold(gpu, kind))

    def pages(gpu: Any) -> int:
        return sum(len(nvml.nvmlDeviceGetRetiredPages(gpu, cause)) for cause in (0, 1))

    def compute(gpu: Any) -> list[int]:
        return [int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)]

    def graphics(gpu: Any) -> list[int]:
        return [int(process.pid) for process in nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(gpu)]

    def memory(name: str) -> Reader:
        return lambda gpu: int(getattr(nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2), name))

    sm = nvml.NVML_CLOCK_SM
    return {
        "name": lambda gpu: _text(nvml.nvmlDeviceGetName(gpu)),
        "address": lambda gpu: pci_address(_text(nvml.nvmlDeviceGetPciInfo(gpu).busId)),
        "uuid": lambda gpu: _text(nvml.nvmlDeviceGetUUID(gpu)),
        "vbios": lambda gpu: _text(nvml.nvmlDeviceGetVbiosVersion(gpu)),
        "inforom": lambda gpu: _text(nvml.nvmlDeviceGetInforomImageVersion(gpu)),
        "gsp_version": lambda gpu: _text(nvml.nvmlDeviceGetGspFirmwareVersion(gpu)),
        "gsp_mode": nvml.nvmlDeviceGetGspFirmwareMode,
        "ecc_mode": nvml.nvmlDeviceGetEccMode,
        "ecc_corrected": ecc(0, 0),
        "ecc_uncorrected": ecc(1, 0),
        "sram": lambda gpu: _sram(nvml, gpu),
        "remapped_rows": lambda gpu: list(nvml.nvmlDeviceGetRemappedRows(gpu)),
        "retired_pages": pages,
        "retirement_pending": lambda gpu: int(nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu)),
        "nvlink_active": lambda gpu: list(_links(nvml, gpu)),
        "nvlink_errors": lambda gpu: _link_errors(nvml, gpu),
        "nvlink_mbps": lambda gpu: _field(nvml, gpu, LINK_SPEED),
        "peers": lambda gpu: _peers(nvml, gpu, gpus),
        "fabric": lambda gpu: _fabric(nvml, gpu),
        "clock_reasons": lambda gpu: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
        "temperature_c": lambda gpu: int(nvml.nvmlDeviceGetTemperature(gpu, 0)),
        "slowdown_c": threshold(nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        "memory_temperature_c": lambda gpu: _field(nvml, gpu, MEMORY_TEMPERATURE),
        "memory_max_c": threshold(nvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
        "power_mw": lambda gpu: int(nvml.nvmlDeviceGetPowerUsage(gpu)),
        "power_limit_mw": lambda gpu: int(nvml.nvmlDeviceGetEnforcedPowerLimit(gpu)),
        "power_default_mw": lambda gpu: int(nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu)),
        "sm_max_mhz": lambda gpu: int(nvml.nvmlDeviceGetMaxClockInfo(gpu, sm)),
        "application_mhz": lambda gpu: int(nvml.nvmlDeviceGetApplicationsClock(gpu, sm)),
        "application_default_mhz": lambda gpu: int(nvml.nvmlDeviceGetDefaultApplicationsClock(gpu, sm)),
        "persistence": lambda gpu: int(nvml.nvmlDeviceGetPersistenceMode(gpu)),
        "mig": nvml.nvmlDeviceGetMigMode,
        "compute_mode": lambda gpu: int(nvml.nvmlDeviceGetComputeMode(gpu)),
        "memory_used_bytes": memory("used"),
        "memory_total_bytes": memory("total"),
        "pcie_replays": lambda gpu: int(nvml.nvmlDeviceGetPcieReplayCounter(gpu)),
        "processes": compute,
        "graphics_processes": graphics,
    }


def _value(nvml: Any, read_value: Reader, gpu: Any) -> Any:
    try:
        return read_value(gpu)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_Deprecated):
        return None
    except nvml.NVMLError as error:
        return {"error": str(error)}


def read(nvml: Any) -> dict[str, Any]:
    """Return versions and the values of all GPUs. Raises NVMLError if the driver does not answer."""
    nvml.nvmlInit()
    gpus: list[Any] = []
    lost: dict[int, str] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:
            gpus.append(None)
            lost[index] = str(error)
    readers = _readers(nvml, gpus)
    cuda = nvml.nvmlSystemGetCudaDriverVersion()
    return {
        "driver": _text(nvml.nvmlSystemGetDriverVersion()),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "nvml": _text(nvml.nvmlSystemGetNVMLVersion()),
        "gpus": [
            {"lost": lost[index]}
            if gpu is None
            else {name: _value(nvml, read_value, gpu) for name, read_value in readers.items()}
            for index, gpu in enumerate(gpus)
        ],
    }


def activity(nvml: Any, samples: int = SAMPLES, every_s: float = EVERY_S) -> dict[str, Any]:
    """Return each GPU's power limit, and its samples of utilisation in percent and power in mW.

    Raises NVMLError if the driver does not answer.
    """
    nvml.nvmlInit()
    readers: dict[str, Reader] = {
        "utilisation_percent": lambda gpu: int(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
        "power_mw": lambda gpu: int(nvml.nvmlDeviceGetPowerUsage(gpu)),
    }
    reports: list[dict[str, Any]] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            reports.append({"lost": str(error)})
            continue
        limit = _value(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
        reports.append({"gpu": gpu, "power_limit_mw": limit, **{name: [] for name in readers}})
    for number in range(samples):
        if number:
            time.sleep(every_s)
        for report in reports:
            for name, read_value in readers.items():
                if "gpu" in report:
                    report[name].append(_value(nvml, read_value, report["gpu"]))
    for report in reports:
        report.pop("gpu", None)
    return {"gpus": reports}


def main() -> None:
    """Print the values as JSON, or exit with the reason for a failure."""
    try:
        import pynvml
    except ImportError:
        raise SystemExit("nvidia-ml-py: not installed, expected the extra fabrictime[gpu]") from None
    try:
        print(json.dumps((activity if sys.argv[1:] == [ACTIVITY] else read)(pynvml)))
    except pynvml.NVMLError as error:
        raise SystemExit(f"NVML: {error}") from None


if __name__ == "__main__":
    main()
