"""Processor time of a product's services: names, groups and threads."""

from __future__ import annotations

import os
import threading

from fabrictime.bench import Figure
from fabrictime.bench.pipeline._evidence import Interval
from fabrictime.bench.pipeline._fleet_run import Observed, core_figures
from fabrictime.bench.pipeline._product import Cores, CpuTimes, threads_cpu_s


def test_helper_processes_count_for_their_service_and_new_ones_from_zero() -> None:
    before = CpuTimes(10.0, {("worker-1", 1): 5.0, ("log", 2): 1.0})
    after = CpuTimes(20.0, {("worker-1", 1): 9.0, ("worker-1", 3): 1.0, ("log", 2): 1.5})
    assert after.cores_since(before) == [Cores("worker-1", 0.5), Cores("log", 0.05)]


def test_services_are_grouped_by_kind_and_a_slow_fleets_worker_counts_in_real_time() -> None:
    rows = [Cores("worker-1", 0.5), Cores("prober h1/eth0", 0.01), Cores("prober h2/eth0", 0.03)]
    figures = core_figures(Observed(rows, 0.5, Interval(0, 1)), "_x")
    values = {key: figure.value for key, figure in figures.items() if isinstance(figure, Figure)}
    assert values == {
        "cores_x": 0.54,
        "worker_cores_x": 1.0,
        "prober_cores_x": 0.02,
        "probers_cores_x": 0.04,
        "pace_x": 0.5,
    }


def test_every_thread_of_a_process_has_its_time() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        times = threads_cpu_s(os.getpid())
    finally:
        ended.set()
        thread.join()
    assert thread.native_id in times
    assert times[os.getpid()] > 0
