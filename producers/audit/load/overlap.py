"""Measures how much of a communication is hidden by computation, and prints one line of JSON.

It needs torch only, and imports nothing of fabrictime: `python3 overlap.py`, or with `--device cpu`. Each GPU
has a process of its own. As in fully sharded training, matrices are sharded over the processes: each process
gathers the next matrix while it multiplies by the current one.

Three times are measured: the multiplications alone (c), the gather alone (g), and both started together (b).
Without overlap b = c + g; with perfect overlap b = max(c, g). The share of the shorter time that the longer
one hides is therefore

    hidden = 1 - (b - max(c, g)) / min(c, g) = (c + g - b) / min(c, g),

1 for a perfect overlap and 0 for none. The number of multiplications is chosen so that c is close to g.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

WIDTH, BATCH = 16_384, 2_048
CPU_WIDTH, CPU_BATCH = 768, 64
CPU_RANKS = 2
TIMES, WARM_TIMES = 15, 3
MAX_REPEATS = 64
SEED = 26
LIMIT_S = 150.0
POLL_S = 0.05


def hidden_share(compute_s: float, gather_s: float, both_s: float) -> float:
    """Return the share of the shorter time that the longer one hides, clipped to 0 to 1.

    `both_s`: time of both started together. Raises ValueError for a time that is not positive.
    """
    if not (compute_s > 0 and gather_s > 0 and both_s > 0):
        raise ValueError(f"times {compute_s:g}, {gather_s:g} and {both_s:g} s, expected above 0")
    return min(1.0, max(0.0, (compute_s + gather_s - both_s) / min(compute_s, gather_s)))


def repeats_for(gather_s: float, one_s: float) -> int:
    """Return how many multiplications take as long as a gather, at least 1. `one_s`: time of one."""
    return max(1, min(MAX_REPEATS, round(gather_s / one_s)))


def bus_gb_per_s(matrix_bytes: int, ranks: int, gather_s: float) -> float:
    """Return the bandwidth at which each rank receives all shards but its own, GB/s."""
    return matrix_bytes * (ranks - 1) / ranks / gather_s / 1e9


class _Rank:
    """One process's part: its shard of the matrix, and the operations to time."""

    def __init__(self, device: str, ranks: int, rank: int, width: int, batch: int) -> None:
        import torch

        self._torch, self._is_gpu = torch, device.startswith("cuda")
        kind = torch.bfloat16 if self._is_gpu else torch.float32
        chance = torch.Generator().manual_seed(SEED)
        rows = width // ranks
        self.expected = torch.randn(rows * ranks, width, generator=chance).to(device, kind)
        self._shard = self.expected[rank * rows : (rank + 1) * rows].clone()
        self.gathered = torch.zeros_like(self.expected)
        self._inputs = torch.randn(batch, rows * ranks, generator=chance).to(device, kind)
        self._current = self.expected.clone()
        self.output = torch.empty(batch, width, device=device, dtype=kind)
        self.repeats = 1

    def compute(self) -> None:
        """Multiply by the current matrix."""
        for _ in range(self.repeats):
            self._torch.matmul(self._inputs, self._current, out=self.output)

    def gather(self) -> Any:
        """Begin to gather the next matrix, and return torch's work object to wait for."""
        return self._torch.distributed.all_gather_into_tensor(self.gathered, self._shard, async_op=True)

    def both(self) -> None:
        """Multiply while the next matrix is gathered."""
        work = self.gather()
        self.compute()
        work.wait()

    def seconds(self, operation: Callable[[], object]) -> float:
        """Return the median time of an operation on the slowest rank."""
        distributed, times_s = self._torch.distributed, []
        for number in range(WARM_TIMES + TIMES):
            distributed.barrier()
            self._finish()
            began_s = time.perf_counter()
            operation()
            self._finish()
            if number >= WARM_TIMES:
                times_s.append(time.perf_counter() - began_s)
        median = self._torch.tensor([statistics.median(times_s)], device=self.output.device)
        distributed.all_reduce(median, op=distributed.ReduceOp.MAX)
        return float(median.item())

    def _finish(self) -> None:
        if self._is_gpu:
            self._torch.cuda.synchronize()


def measure(device: str, ranks: int, rank: int, width: int, batch: int, store: str) -> dict[str, Any]:
    """Return the group's times, the hidden share, and whether all values are right."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo", f"file://{store}", rank=rank, world_size=ranks
    )
    own = _Rank(device, ranks, rank, width, batch)
    gather_s = own.seconds(lambda: own.gather().wait())
    own.repeats = repeats_for(gather_s, own.seconds(own.compute))
    compute_s, gather_s, both_s = own.seconds(own.compute), own.seconds(_waited(own)), own.seconds(own.both)
    right = torch.tensor([int(torch.equal(own.gathered, own.expected))], device=device)
    torch.distributed.all_reduce(right)
    size = own.gathered.numel() * own.gathered.element_size()
    torch.distributed.destroy_process_group()
    return {
        "ranks": ranks,
        "repeats": own.repeats,
        "compute_s": compute_s,
        "gather_s": gather_s,
        "both_s": both_s,
        "hidden_share": hidden_share(compute_s, gather_s, both_s),
        "gather_gb_per_s": bus_gb_per_s(size, ranks, gather_s),
        "right_ranks": int(right.item()),
    }


def _waited(own: _Rank) -> Callable[[], object]:
    return lambda: own.gather().wait()


def _on_all(device: str, ranks: int, width: int, batch: int) -> dict[str, Any]:
    """Start a process for each rank, and return what rank 0 prints. If one fails, end all."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--ranks", str(ranks), "--width", str(width), "--batch", str(batch)]
        options += ["--store", os.path.join(folder, "store")]
        children = [
            subprocess.Popen(
                [
                    *(sys.executable, "-I", os.path.abspath(__file__), *options, "--rank", str(rank)),
                    *("--device", device if device == "cpu" else f"cuda:{rank}"),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            return _printed(children)
        finally:
            for child in children:
                child.kill()
                child.communicate()


def _printed(children: list[subprocess.Popen[str]]) -> dict[str, Any]:
    until_s = time.monotonic() + LIMIT_S
    while any(child.poll() is None for child in children):
        failed = next((child for child in children if child.poll()), None)
        if failed is not None or time.monotonic() > until_s:
            break
        time.sleep(POLL_S)
    for rank, child in enumerate(children):
        if child.poll():
            last = (child.communicate()[1].strip().splitlines() or ["no message"])[-1]
            return {"error": f"rank {rank}: exit code {child.returncode}, {last[:200]}"}
    if any(child.poll() is None for child in children):
        return {"error": f"no end within {LIMIT_S:g} s"}
    report: dict[str, Any] = json.loads(children[0].communicate()[0])
    return report


def main() -> None:
    """Print the outcome of all GPUs, or run one rank."""
    parser = argparse.ArgumentParser(description="Measure the overlap of computation and communication.")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--ranks", type=int, default=0, help="processes; default: all GPUs")
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    is_gpu = options.device.startswith("cuda")
    if not is_gpu:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        import torch
    except ImportError:
        print(json.dumps({"missing": "torch is not installed"}))
        return
    ranks = options.ranks or (torch.cuda.device_count() if is_gpu else CPU_RANKS)
    width = options.width or (WIDTH if is_gpu else CPU_WIDTH)
    batch = options.batch or (BATCH if is_gpu else CPU_BATCH)
    if ranks < 2:
        print(json.dumps({"missing": f"torch finds {ranks} GPUs, expected at least 2"}))
    elif options.rank < 0:
        print(json.dumps({"torch": torch.__version__, **_on_all(options.device, ranks, width, batch)}))
    else:
        print(json.dumps(measure(options.device, ranks, options.rank, width, batch, options.store)))


if __name__ == "__main__":
    main()
