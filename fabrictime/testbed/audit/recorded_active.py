"""Load programs of the recorded host with their output, written from the programs' public formats."""

from __future__ import annotations

import json

from fabrictime.testbed.audit.recorded_services import DEVICES
from producers.audit.host.base import OVERLAP, STREAM, TRAFFIC, TRAINING, VOLUME
from producers.audit.load.one_host import (
    ALL_REDUCE,
    BURN_S,
    FIO,
    LOOPBACK,
    QUEUE_PAIRS,
    SHAPES,
    SUITE_FOLDER,
)
from producers.audit.load.overlap import hidden_share
from producers.audit.load.traffic_plan import PLANS, RING_CHECK, RoundNic, TrafficRound

NCCL = "/opt/nccl-tests/build/all_reduce_perf"
RCCL = "/opt/rccl-tests/build/all_reduce_perf"
BANDWIDTH = """---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1862800          0.00               {:.2f}             0.744915
---------------------------------------------------------------------------------------
"""
LATENCY = """ #bytes #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  t_stdev[usec]
 2       5000          1.02           4.31         {:.2f}               1.08             0.05
"""
REDUCED = """#       size         count      type   redop    root     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1   3900.1  275.32  {bus:.2f}      0
# Out of bounds values : {wrong} {verdict}
# Avg bus bandwidth    : {bus:.3f}
#
"""
DIAGNOSTIC = {
    "DCGM Diagnostic": {
        "test_categories": [
            {"category": "Deployment", "tests": [{"name": "software", "results": [{"status": "Pass"}]}]},
            {
                "category": "Hardware",
                "tests": [
                    {"name": "memory", "results": [{"gpu_id": gpu, "status": "Pass"} for gpu in range(8)]}
                ],
            },
        ]
    }
}
DCGM = ("/usr/bin/dcgmi", "diag", "--run", "2", "--json")
COPY_TESTS = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce")
COPIES = ("/usr/local/cuda/bin/nvbandwidth", "--json", "--testcase", *COPY_TESTS)
FIO_READ = ("/usr/bin/fio", *FIO)
SUITE = ("/opt/rocm/bin/rvs", "-c", f"{SUITE_FOLDER}/gst_single.conf")
BURN = ("/opt/gpu-burn/gpu_burn", str(BURN_S))
GDRCOPY = ("/usr/bin/gdrcopy_sanity",)
MEMORY = (STREAM,)
CLAIM = (VOLUME, "storage-audit", "", "60")
IN_HOST = (NCCL, *ALL_REDUCE, "8")
ROUND = TrafficRound(
    run="r1",
    host="h1",
    hosts=("h1", "h2", "h3"),
    nics={
        f"h{host}": tuple(RoundNic(rail, f"eth{rail}", f"10.{rail}.0.{host}") for rail in (0, 1))
        for host in (1, 2, 3)
    },
)
"""A round of traffic, of which the recorded host is the first."""
FLOW = {
    "sent_bytes": 100e6,
    "received_bytes": 100e6,
    "send_bps": 1e9,
    "receive_bps": 1e9,
    "idle_p50_us": 40.0,
    "idle_p99_us": 90.0,
    "loaded_p99_us": 900.0,
}
HOP = {"steps": 300, "hop_p50_ms": 0.3, "hop_p90_ms": 0.5, "hop_max_ms": 2.0}


def traffic(check_id: str) -> tuple[str, ...]:
    """Return the command for this host's part of the round of traffic that a check runs."""
    return (TRAFFIC, PLANS[check_id](ROUND).text())


def traffic_output(check_id: str, **last: float) -> str:
    """Return the output of the traffic program, with the figures `last` for the last flow."""
    flows = [planned_flow.flow for planned_flow in PLANS[check_id](ROUND).flows if planned_flow.is_client]
    figures = dict.fromkeys(flows, HOP if check_id == RING_CHECK else FLOW)
    figures[flows[-1]] = {**figures[flows[-1]], **last}
    return json.dumps({"flows": figures, "errors": {}, "refused": 0})


def reduced(bandwidth: float, wrong: int = 0) -> str:
    """Return the output of all_reduce_perf for a bus bandwidth, GB/s, and a number of wrong values."""
    return REDUCED.format(bus=bandwidth, wrong=wrong, verdict="FAILED" if wrong else "OK")


def over_nics(shape: str, pairs: int) -> tuple[str, ...]:
    """Return the command that runs an all-reduce over the NICs, with `pairs` queue pairs per connection."""
    environment = (
        "NCCL_P2P_DISABLE=1",
        "NCCL_SHM_DISABLE=1",
        f"NCCL_ALGO={SHAPES[shape]}",
        f"NCCL_IB_QPS_PER_CONNECTION={pairs}",
    )
    return (*environment, *IN_HOST)


def loopback(program: str, device: str, *options: str) -> tuple[str, ...]:
    """Return the command that runs a perftest program on one RDMA device, as client and server."""
    number = list(DEVICES).index(device)
    arguments = (f"/usr/bin/{program}", f"--ib-dev={device}", f"--port={18515 + number}", *options)
    return ("sh", "-c", LOOPBACK, *arguments)


def bandwidth(device: str) -> tuple[str, ...]:
    """Return the command that measures the RDMA write bandwidth from host memory."""
    return loopback("ib_write_bw", device, "--report_gbits", "--duration=5")


def gpu_bandwidth(device: str) -> tuple[str, ...]:
    """Return the command that measures the RDMA write bandwidth from GPU memory."""
    return loopback("ib_write_bw", device, "--report_gbits", "--duration=5", "--use_cuda=0")


def latency(device: str) -> tuple[str, ...]:
    """Return the command that measures the RDMA write latency."""
    return loopback("ib_write_lat", device, "--size=2", "--iters=5000")


def copies(lowest: float) -> str:
    """Return the output of nvbandwidth, in which the first copy has the lowest bandwidth `lowest`, GB/s."""
    tests = [{"name": name, "status": "Passed", "min": 55.1, "max": 55.3} for name in COPY_TESTS]
    tests[0]["min"] = lowest
    return json.dumps({"nvbandwidth": {"testcases": tests}})


def trained(bad: int | None = None, **changes: object) -> str:
    """Return the output of training.py on eight GPUs; `changes` are other values of GPU `bad`."""
    common = {"tflops": 655.2, "first_loss": 0.5573, "loss": 0.0094, "digest": "447711327a26ec41"}
    devices: list[dict[str, object]] = [
        {"device": f"cuda:{gpu}", **common, "repeats": True, **(changes if gpu == bad else {})}
        for gpu in range(8)
    ]
    return json.dumps({"torch": "2.7.1", "width": 8192, "steps": 120, "devices": devices})


def overlapped(both_s: float, right: int = 8) -> str:
    """Return the output of overlap.py on eight GPUs, of which `right` have correct results."""
    times = {"compute_s": 0.0031, "gather_s": 0.0029, "both_s": both_s}
    figures = {"hidden_share": hidden_share(**times), "gather_gb_per_s": 162.0, "right_ranks": right}
    return json.dumps({"torch": "2.7.1", "ranks": 8, "repeats": 2, **times, **figures})


def files() -> dict[str, str | bytes]:
    """Return the files of the load programs, by path."""
    paths = (
        *(f"/usr/bin/{name}" for name in ("ib_write_bw", "ib_write_lat")),
        *(command[0] for command in (DCGM, COPIES, FIO_READ, SUITE, BURN, GDRCOPY)),
        *(NCCL, RCCL, SUITE[2]),
    )
    return dict.fromkeys(paths, "")


def commands() -> dict[tuple[str, ...], str]:
    """Return the output of the load programs, by command."""
    outputs = {
        IN_HOST: reduced(462.4),
        (RCCL, *ALL_REDUCE, "2"): reduced(318.2),
        DCGM: json.dumps(DIAGNOSTIC),
        COPIES: copies(55.1),
        FIO_READ: json.dumps({"jobs": [{"read": {"bw_bytes": 6_400_000_000}}]}),
        SUITE: "[RESULT] [ 9241.1] [gpustress] gst 50000 GFLOPS pass: TRUE\n",
        BURN: "100.0%  proc'd: 9000\nTested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: OK\n",
        GDRCOPY: "Total: 28, Passed: 28, Failed: 0, Waived: 0\n",
        MEMORY: "502.4\n",
        (TRAINING,): trained(),
        (OVERLAP,): overlapped(0.0036),
        CLAIM: json.dumps({"bound_s": 3.2}),
    }
    outputs |= {traffic(check_id): traffic_output(check_id) for check_id in PLANS}
    for shape in SHAPES:
        for pairs in QUEUE_PAIRS:
            outputs[over_nics(shape, pairs)] = reduced(180.0 + pairs)
    for device in DEVICES:
        outputs[bandwidth(device)] = BANDWIDTH.format(392.1)
        outputs[gpu_bandwidth(device)] = BANDWIDTH.format(389.8)
        outputs[latency(device)] = LATENCY.format(1.06)
    return outputs
