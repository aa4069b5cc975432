"""A rank of a PyTorch job over NCCL. Several ranks share one GPU, which NCCL allows if they name other hosts.

It runs rounds of collectives and messages, and prints each operation with its begin and end on the host: JSON
lines, in ns since the Unix epoch. Arguments: rank, ranks, port, rounds, and the ms that the last rank
computes before each round but the first. The address of rank 0 is MASTER_ADDR, or the loopback.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

MIB = 1 << 20


def main(rank: int, ranks: int, port: int, rounds: int, late_ms: float) -> None:
    """Run the job as one rank."""
    os.environ.setdefault("NCCL_HOSTID", f"host{rank}")
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", f"tcp://{address}:{port}", rank=rank, world_size=ranks)
    data = torch.ones(16 * MIB // 4, device="cuda")
    parts = torch.ones(ranks, MIB // 4, device="cuda")
    other = torch.empty_like(parts)
    small = torch.ones(MIB // 4, device="cuda")
    got = torch.empty_like(small)
    following, former = (rank + 1) % ranks, (rank - 1) % ranks

    def exchange() -> None:
        sends = dist.P2POp(dist.isend, small, following)
        for work in dist.batch_isend_irecv([sends, dist.P2POp(dist.irecv, got, former)]):
            work.wait()

    operations: list[tuple[str, int, Callable[[], object]]] = [
        ("ALL_REDUCE", 16 * MIB, lambda: dist.all_reduce(data)),
        ("ALL_REDUCE", MIB, lambda: dist.all_reduce(small)),
        ("ALL_GATHER", MIB, lambda: dist.all_gather_into_tensor(other.view(-1), small)),
        ("REDUCE_SCATTER", MIB, lambda: dist.reduce_scatter_tensor(got, parts.view(-1))),
        ("BROADCAST", MIB, lambda: dist.broadcast(small, 0)),
        ("EXCHANGE", MIB, exchange),
        ("ALL_TO_ALL", ranks * MIB, lambda: dist.all_to_all_single(other.view(-1), parts.view(-1))),
    ]
    for number in range(rounds):
        if late_ms and number and rank == ranks - 1:
            time.sleep(late_ms / 1e3)
        for name, size, run in operations:
            begin_ns = time.time_ns()
            run()
            torch.cuda.synchronize()
            end_ns = time.time_ns()
            done = {"round": number, "name": name, "bytes": size, "begin_ns": begin_ns, "end_ns": end_ns}
            print(json.dumps(done), flush=True)
    dist.destroy_process_group()
    print(json.dumps({"nccl": ".".join(map(str, torch.cuda.nccl.version()))}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
