"""Probers on a real fabric: threads run engines whose sockets are in the hosts' namespaces."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fabrictime.testbed.fabric.fabric import Fabric, FabricNic

KEY = bytes(range(16))
PORT = 9319
FIRST_PATH_PORT = 9320


class Probers:
    """An engine on every NIC of a fabric. Used inside the namespaces only: it imports what starts threads."""

    def __init__(self, fabric: Fabric, peers: dict[str, list[str]], **settings: Any) -> None:
        from native.core.probe import Engine, Peer, open_sockets

        clocks = settings.pop("clocks", {})
        paths = settings.pop("paths", 4)
        self.engines: dict[str, Engine] = {}

        def opened(nic: FabricNic) -> Any:
            return fabric.open_in(nic.host, lambda: open_sockets(nic.address, PORT, FIRST_PATH_PORT, paths))

        for nic in fabric.nics():
            self.engines[nic.nic] = Engine(
                opened(nic),
                nic=nic.nic,
                key=KEY,
                clock=clocks.get(nic.nic),
                **{"rate_pps": 1000.0, "collect_delay_ms": 5.0, **settings},
            )
        for nic in fabric.nics():
            wanted = [fabric.nic(name) for name in peers.get(nic.nic, [])]
            self.engines[nic.nic].set_peers([Peer(to.nic, to.address, PORT) for to in wanted])
        self.threads = [threading.Thread(target=engine.run, daemon=True) for engine in self.engines.values()]
        for thread in self.threads:
            thread.start()

    def measure(self, seconds: float) -> dict[str, list[Any]]:
        """Return the batches of each NIC over `seconds`, drained every 100 ms."""
        batches: dict[str, list[Any]] = {name: [] for name in self.engines}
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            threading.Event().wait(min(left, 0.1))
            for name, engine in self.engines.items():
                batches[name].append(engine.drain())
        return batches

    def close(self) -> None:
        for engine in self.engines.values():
            engine.stop()
        for thread in self.threads:
            thread.join(10)
        for engine in self.engines.values():
            engine.close()


@pytest.fixture
def probers() -> type[Probers]:
    return Probers
