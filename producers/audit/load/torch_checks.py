"""Checks that run torch: a small training on every GPU, and how much communication computation hides.

The scripts training.py and overlap.py run in the interpreter of `audit.torch_python`. Without torch, or
without enough GPUs, the checks are SKIPPED.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from producers.audit.base import Checks, Fact, Finding, checked
from producers.audit.gpu.sku import AMD, NVIDIA, gpu_addresses, sku_of
from producers.audit.host.base import OVERLAP, TRAINING, Host, Missing, Unreadable
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

TRAINING_S: Final = 270.0
OVERLAP_S: Final = 180.0
"""TRAINING_S and OVERLAP_S are longer than the limits in the scripts themselves."""
MAX_LOSS_SHARE: Final = 0.1
"""Largest ratio of the last loss to the first; a right computation reaches 0.03 (training.py)."""
MIN_OF_MEDIAN: Final = 0.9
"""Least speed of a GPU relative to the host's median; Azure replaces a GPU that is 7% slower in GEMM."""
MIN_HIDDEN: Final = 0.3
"""Least hidden share. CUDA_LAUNCH_BLOCKING or CUDA_DEVICE_MAX_CONNECTIONS=1 hide nothing."""
CHECKS: Final = Checks(active=True)


def _printed(host: Host, command: str, limit_s: float) -> Mapping[str, Any]:
    """Return the report that a script prints. Raises Missing without GPU or torch, Unreadable if it fails."""
    if not any(gpu_addresses(host, vendor) for vendor in (NVIDIA, AMD)):
        raise Missing("no GPU on PCIe")
    report: Mapping[str, Any] = json.loads(host.load(limit_s, command))
    if "missing" in report:
        raise Missing(str(report["missing"]))
    if "error" in report:
        raise Unreadable(str(report["error"]))
    return report


def _speed(device: str, tflops: float, others: Sequence[float], minimum: float) -> Finding:
    minimum = max(minimum, MIN_OF_MEDIAN * statistics.median(others))
    finding = checked(tflops >= minimum, f"{tflops:,.1f} TFLOP/s, expected at least {minimum:,.1f}", device)
    return replace(finding, fact=Fact("training_tflops", f"{tflops:g}", tflops))


def _values(gpu: Mapping[str, Any], majority_digest: str, version: str) -> Iterator[Finding]:
    """Yield the findings on the values that one GPU computed."""
    device, first, last = str(gpu["device"]), float(gpu["first_loss"]), float(gpu["loss"])
    yield checked(
        0 <= last <= MAX_LOSS_SHARE * first,
        f"loss fell from {first:.4g} to {last:.4g}, expected at most {MAX_LOSS_SHARE:g} of the first",
        device,
    )
    bits = "the same bits" if gpu["repeats"] else "other bits"
    yield checked(bool(gpu["repeats"]), f"a second run from the same seed ends with {bits}", device)
    digest = str(gpu["digest"])
    is_usual = digest == majority_digest
    text = f"weights {digest}" + ("" if is_usual else f", on the host's other GPUs {majority_digest}")
    fact = Fact("training_weights", f"torch {version}: {digest}")
    yield replace(checked(is_usual, text, device), fact=fact)


@CHECKS.error(
    "gpu.training",
    "A small training run has speed and right values on every GPU",
    53,
    76,
    limit_s=TRAINING_S + 10.0,
)
@remedy.replace("Check clocks, power and temperature of a slow GPU; replace one that computes other values")
def _training(host: Host) -> Iterator[Finding]:
    report = _printed(host, TRAINING, TRAINING_S)
    gpus = [gpu for gpu in report["devices"] if "error" not in gpu]
    for gpu in report["devices"]:
        if "error" in gpu:
            yield Finding(str(gpu["device"]), AuditStatus.UNKNOWN, str(gpu["error"]))
    if not gpus:
        return
    sku = sku_of(host)
    minimum = sku.lowest("training_tflops") if sku is not None else 0.0
    speeds = [float(gpu["tflops"]) for gpu in gpus]
    majority_digest = Counter(str(gpu["digest"]) for gpu in gpus).most_common(1)[0][0]
    for gpu, tflops in zip(gpus, speeds, strict=True):
        yield _speed(str(gpu["device"]), tflops, speeds, minimum)
        yield from _values(gpu, majority_digest, str(report["torch"]))


@CHECKS.warning(
    "collectives.overlap",
    "Computation hides communication between the host's GPUs",
    54,
    limit_s=OVERLAP_S + 10.0,
)
@remedy.monitor(
    "Unset CUDA_LAUNCH_BLOCKING and CUDA_DEVICE_MAX_CONNECTIONS; compare NCCL's version with the fleet",
)
def _overlap(host: Host) -> Iterator[Finding]:
    report = _printed(host, OVERLAP, OVERLAP_S)
    ranks, right, share = int(report["ranks"]), int(report["right_ranks"]), float(report["hidden_share"])
    yield checked(right == ranks, f"{right} of {ranks} GPUs gathered the right values", "gather")
    parts = ("compute", "gather", "both")
    times = ", ".join(f"{name} {1e3 * float(report[name + '_s']):.2f} ms" for name in parts)
    finding = checked(share >= MIN_HIDDEN, f"{share:.0%} hidden, expected at least {MIN_HIDDEN:.0%}: {times}")
    yield replace(finding, fact=Fact("overlap_hidden_share", f"{share:g}", share))
    bandwidth = float(report["gather_gb_per_s"])
    fact = Fact("all_gather_gb_per_s", f"{bandwidth:g}", bandwidth)
    yield Finding("gather", AuditStatus.PASSED, f"{bandwidth:,.1f} GB/s", fact)
