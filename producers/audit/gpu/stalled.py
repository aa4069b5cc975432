"""Finds stalled collectives: GPUs that are fully utilised and draw little power.

The GPU kernel of a collective waits for its peers in a loop. NVML counts that as full utilisation, but the
arithmetic units are idle. An H100 draws about a tenth of its power limit when idle, a fifth when it waits,
and more than half in a training job. The threshold lies between; published checks state none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from producers.audit.base import Checks, Finding, checked
from producers.audit.gpu.nvml import ACTIVITY
from producers.audit.gpu.sku import NVIDIA, gpu_addresses
from producers.audit.host.base import NVML, Host, Missing, Unreadable
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

BUSY_PERCENT: Final = 95
MAX_POWER_SHARE: Final = 0.3
LIMIT_S: Final = 45.0
CHECKS: Final = Checks()


def is_stalled(utilisation_percent: list[int], power_mw: list[int], power_limit_mw: int) -> bool:
    """Return whether all samples of a GPU show high utilisation and low power. Raises ValueError if empty."""
    samples = list(zip(utilisation_percent, power_mw, strict=True))
    if not samples or power_limit_mw <= 0:
        raise ValueError(f"{len(samples)} samples and a power limit of {power_limit_mw} mW, expected both")
    return all(busy >= BUSY_PERCENT and power < MAX_POWER_SHARE * power_limit_mw for busy, power in samples)


def _values(gpu: dict[str, Any], name: str) -> Any:
    """Return a value, or a list of samples. Raises Missing if there is none, Unreadable if NVML failed."""
    values = gpu[name]
    for value in values if isinstance(values, list) else [values]:
        if value is None:
            raise Missing(f"{name} is not supported")
        if isinstance(value, dict):
            raise Unreadable(f"{name}: {value.get('error', 'no value')}")
    return values


@CHECKS.warning("gpu.stalled", "No collective stalls", 55, limit_s=LIMIT_S)
@remedy.monitor("Find the rank that does not arrive: `fabrictime explain`, or py-spy dump on each rank")
def _stalled(host: Host) -> Iterator[Finding]:
    if not gpu_addresses(host, NVIDIA):
        raise Missing("no NVIDIA GPU on PCIe")
    try:
        gpus = json.loads(host.run(NVML, ACTIVITY))["gpus"]
    except Missing as error:
        raise Unreadable(str(error)) from error
    if all("lost" in gpu for gpu in gpus):
        raise Unreadable("no GPU answers NVML")
    for index, gpu in enumerate(gpus):
        if "lost" in gpu:
            continue
        try:
            yield _finding(gpu, f"GPU {index}")
        except Missing as error:
            yield Finding(f"GPU {index}", AuditStatus.SKIPPED, str(error))
        except (Unreadable, KeyError, TypeError, ValueError) as error:
            yield Finding(f"GPU {index}", AuditStatus.UNKNOWN, f"unreadable: {error}")


def _finding(gpu: dict[str, Any], subject: str) -> Finding:
    busy, power = _values(gpu, "utilisation_percent"), _values(gpu, "power_mw")
    limit = _values(gpu, "power_limit_mw")
    text = (
        f"utilisation at least {min(busy)}%, at most {max(power) / 1000:.0f} of {limit / 1000:.0f} W; "
        f"stalled: {BUSY_PERCENT}% and below {MAX_POWER_SHARE:.0%} in {len(busy)} samples"
    )
    return checked(not is_stalled(busy, power, limit), text, subject)
