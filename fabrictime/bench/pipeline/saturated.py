"""Measures dead links while the bulk consumer is flooded with more probe batches than it can read.

The flood has the names of NICs that do not exist; its messages are as small as those of a fleet. The probe
rate is that of `bench detect dead_links`, to whose target the figure belongs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import running_fabric
from fabrictime.bench._fleet import SyntheticFleet
from fabrictime.bench.control.watch import Watch
from fabrictime.bench.detect.dead_links import SETTINGS
from fabrictime.bench.pipeline._events import events_of, latency_figures
from fabrictime.bench.pipeline._product import Product
from fabrictime.bench.pipeline.faults import is_up, planted, verdicts_ms
from fabrictime.testbed.control import ControlClient
from schemas.ids import cable_id
from schemas.kafka.producer import load_producer
from schemas.topics import LINK_HEALTH, PROBES

TRIALS, QUICK_TRIALS = 20, 4
WARM_S: Final = 20.0
NICS: Final = 64
MESSAGES_PER_S: Final = 20_000
"""Rate of the flood, twice what a worker reads on one core at 0.1 ms per message."""
BURST: Final = 500


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or one with `quick`."""
    count = QUICK_TRIALS if quick else TRIALS
    with running_fabric(progress, SETTINGS) as fabric, Watch(fabric.bootstrap) as watch:
        time.sleep(WARM_S)
        product, begin_s = Product(fabric.bootstrap, fabric.data), time.time()
        before = product.cpu_times()
        with _flood(fabric.bootstrap):
            trials = planted(lambda: _healthy(fabric.control, watch), fabric.control, count, progress)
            used = product.cpu_times().cores_since(before)
        health = events_of(fabric.bootstrap, LINK_HEALTH, begin_s)
    worker_cores = sum(row.cores for row in used if row.kind == "worker")
    return latency_figures("saturated_dead_link", verdicts_ms(trials, health), count) | {
        "saturated_worker_cores": Figure(
            worker_cores, "cores", f"{MESSAGES_PER_S:,} more probe batches a second were offered"
        )
    }


def _healthy(control: ControlClient, watch: Watch) -> dict[str, list[str]]:
    """Return the healthy links between switches, each with an empty list, as no flow is known to cross it."""
    return {
        link: [] for link in control.ask("show")["links"] if "spine" in link and is_up(watch, cable_id(link))
    }


@contextmanager
def _flood(bootstrap: str) -> Iterator[None]:
    """Publish probe batches of NICs that do not exist, at a limited rate, while the block runs."""
    fleet = SyntheticFleet(NICS, peers=10, paths=1, epoch_ns=time.time_ns())
    ended = threading.Event()
    producer = load_producer(bootstrap, {})

    def publish() -> None:
        while not ended.is_set():
            begin_s, now_ns = time.monotonic(), time.time_ns()
            values = [(name, fleet.message(name, now_ns - 10**8, now_ns, 1)) for name in fleet.members]
            for number in range(BURST):
                name, value = values[number % NICS]
                producer.produce(PROBES.name, value, name)
            producer.poll(0)
            ended.wait(max(0.0, BURST / MESSAGES_PER_S - (time.monotonic() - begin_s)))

    thread = threading.Thread(target=publish, name="flood", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)
        producer.flush(10)
