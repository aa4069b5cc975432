"""RDMA probers of the guest: one process a NIC as its service starts it, and what they say."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

import fabric

from producers.probe.rdma.worker_process import WorkerProcess, open_request

KEY = bytes(range(16))
PATHS = 6
"""So many that it would be odd if all went over one of three spines."""
RATE_PPS = 50.0
TIMEOUT_MS = 1500.0
"""QEMU's processors take tens of milliseconds for what others do in one."""


class Probers:
    """Probers of some NICs that ask one another."""

    def __init__(self, nics: list[str]) -> None:
        self.edges = {nic: WorkerProcess(_opening(nic)) for nic in nics}
        self.text: dict[str, list[dict[str, Any]]] = {nic: [] for nic in nics}
        self.until(lambda: all("ready" in (text or [{}])[0] for text in self.text.values()), "ready")
        self.ready = {nic: text.pop(0)["ready"] for nic, text in self.text.items()}

    def begin(self) -> None:
        """Let each ask all others."""
        for nic, edge in self.edges.items():
            edge.set_peers([self._address(other) for other in self.edges if other != nic])

    def groups(self, nic: str, since: int = 0) -> dict[int, tuple[int, list[int]]]:
        """Of a NIC's batches from the since-th on, by path: losses, round trips less turnarounds in ns."""
        found: dict[int, tuple[int, list[int]]] = {path: (0, []) for path in self.ready[nic]["paths"]}
        for each in self.text[nic][since:]:
            for _, path, lost, _, _, forward, _, reverse, *_ in each["batch"]["groups"]:
                trips = [out + back for out, back in zip(forward, reverse, strict=True)]
                found[path] = (found[path][0] + lost, [*found[path][1], *trips])
        return found

    def until(self, done: Callable[[], Any], message: str, limit_s: float = 50.0) -> None:
        end = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{message}: not within {limit_s:.0f} s, last {[s[-1:] for s in self.text.values()]}"
                )
            select.select(list(self.edges.values()), [], [], 0.05)
            for nic, edge in self.edges.items():
                self.text[nic] += edge.read()
                if edge.ended is not None:
                    raise RuntimeError(f"{nic}: {edge.ended}")

    def end(self) -> dict[str, str | None]:
        """End all; how each did."""
        for nic, edge in self.edges.items():
            self.text[nic] += edge.close()
        return {nic: edge.ended for nic, edge in self.edges.items()}

    def _address(self, nic: str) -> tuple[str, str, int, int, list[int]]:
        ready = self.ready[nic]
        return f"guest/rxe_{nic}", ready["gid"], ready["lid"], ready["path_bits"], ready["numbers"]


def _opening(nic: str) -> dict[str, Any]:
    return open_request(
        nic=f"guest/rxe_{nic}",
        device=f"rxe_{nic}",
        run=7,
        key=KEY,
        address=fabric.NICS[nic][0],
        paths=PATHS,
        rate_pps=RATE_PPS,
        timeout_ms=TIMEOUT_MS,
    )
