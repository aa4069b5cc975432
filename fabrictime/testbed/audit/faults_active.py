"""Faults that show only under load, each with the audit check that must find it."""

from __future__ import annotations

import json
from collections.abc import Callable

from fabrictime.testbed.audit import recorded_active as recorded
from fabrictime.testbed.audit.recorded import RecordedHost
from producers.audit.host.base import OVERLAP, TRAINING
from producers.audit.load.one_host import ALL_REDUCE
from producers.audit.load.traffic_plan import FAN_CHECK, PAIR_CHECK, RING_CHECK

Plant = Callable[[RecordedHost], None]


def _prints(command: tuple[str, ...], text: str) -> Plant:
    def plant(host: RecordedHost) -> None:
        if command not in host.commands:
            raise KeyError(f"{command}: the recorded host has no such command")
        host.commands[command] = text

    return plant


def _under_load(counter: str, value: str) -> Plant:
    path = f"/sys/class/infiniband/mlx5_1/ports/1/{counter}"
    return lambda host: host.under_load.__setitem__(path, value)


ACTIVE_FAULTS: dict[str, tuple[str, Plant]] = {
    "slow NIC": (
        "backend.write-bandwidth",
        _prints(recorded.bandwidth("mlx5_1"), recorded.BANDWIDTH.format(96.2)),
    ),
    "slow path to GPU memory": (
        "backend.write-bandwidth-gpu",
        _prints(recorded.gpu_bandwidth("mlx5_1"), recorded.BANDWIDTH.format(60.4)),
    ),
    "late NIC": (
        "backend.write-latency",
        _prints(recorded.latency("mlx5_1"), recorded.LATENCY.format(9.8)),
    ),
    "slow all-reduce": ("collectives.nccl", _prints(recorded.IN_HOST, recorded.reduced(301.2))),
    "wrong all-reduce": ("collectives.nccl", _prints(recorded.IN_HOST, recorded.reduced(462.0, wrong=3))),
    "slow with eight queue pairs": (
        "collectives.nccl-nics",
        _prints(recorded.over_nics("plain", 8), recorded.reduced(41.0)),
    ),
    "slow RCCL": (
        "collectives.rccl",
        _prints((recorded.RCCL, *ALL_REDUCE, "2"), recorded.reduced(301.2, wrong=1)),
    ),
    "failed diagnostic": (
        "gpu.diagnostic",
        _prints(recorded.DCGM, json.dumps(recorded.DIAGNOSTIC).replace("Pass", "Fail", 2)),
    ),
    "slow copies": ("gpu.copies", _prints(recorded.COPIES, recorded.copies(21.0))),
    "wrong values": ("gpu.burn", _prints(recorded.BURN, "Tested 1 GPUs:\n\tGPU 0: FAULTY\n")),
    "failed suite": (
        "gpu.amd-suite",
        _prints(recorded.SUITE, "[RESULT] [ 9241.1] [gpustress] gst 9000 GFLOPS pass: FALSE\n"),
    ),
    "GDRCopy": (
        "gpu.direct-sanity",
        _prints(recorded.GDRCOPY, "Total: 28, Passed: 27, Failed: 1, Waived: 0\n"),
    ),
    "slow training": ("gpu.training", _prints((TRAINING,), recorded.trained(3, tflops=520.0))),
    "other weights": ("gpu.training", _prints((TRAINING,), recorded.trained(3, digest="447711327a26ec40"))),
    "weights that differ each time": (
        "gpu.training",
        _prints((TRAINING,), recorded.trained(3, repeats=False)),
    ),
    "loss that does not fall": ("gpu.training", _prints((TRAINING,), recorded.trained(3, loss=0.41))),
    "loss that is no number": (
        "gpu.training",
        _prints((TRAINING,), recorded.trained(3, loss=float("nan"))),
    ),
    "no overlap": ("collectives.overlap", _prints((OVERLAP,), recorded.overlapped(0.0059))),
    "wrong gather": ("collectives.overlap", _prints((OVERLAP,), recorded.overlapped(0.0036, right=7))),
    "volume that is not bound": (
        "storage.provisioning",
        _prints(recorded.CLAIM, json.dumps({"bound_s": None})),
    ),
    "symbol errors under load": (PAIR_CHECK, _under_load("counters/symbol_error", "3")),
    "link goes down under load": (PAIR_CHECK, _under_load("counters/link_downed", "1")),
    "slow receiver": (
        FAN_CHECK,
        _prints(recorded.traffic(FAN_CHECK), recorded.traffic_output(FAN_CHECK, send_bps=6e8)),
    ),
    "slow hop": (
        RING_CHECK,
        _prints(recorded.traffic(RING_CHECK), recorded.traffic_output(RING_CHECK, hop_p90_ms=7.2)),
    ),
    "slow memory": ("node.memory-bandwidth", _prints(recorded.MEMORY, "120.5\n")),
    "slow drive": (
        "storage.read-bandwidth",
        _prints(recorded.FIO_READ, json.dumps({"jobs": [{"read": {"bw_bytes": 90_000_000}}]})),
    ),
}
