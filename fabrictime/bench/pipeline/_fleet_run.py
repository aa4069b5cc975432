"""Measures one undisturbed `up`: cores by service, pace, ages of evidence, message rates, message cost.

The log is read after the measured interval, so the reader takes no processor time from the services. The
profiler runs in a separate interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.pipeline._evidence import Interval, read_interval
from fabrictime.bench.pipeline._product import Cores, Product, running_product
from fabrictime.bench.pipeline._profile import KINDS, Split, profile
from schemas.topics import CLOCK_OFFSETS, CONTENTION, DELAYS, PATH_QUEUEING, PROBES, QUEUES

EVIDENCE: Final[Mapping[str, str]] = {
    "path_queueing": PATH_QUEUEING.name,
    "queue_evidence": QUEUES.name,
    "delays": DELAYS.name,
    "contention": CONTENTION.name,
}
"""The topic of each kind of evidence, by the kind's name in figures."""
FULL_PACE: Final = 0.97
"""Simulated seconds per second from which a fleet counts as running in real time, as in its status."""
TOPICS_NAMED: Final = 6
"""Maximum number of topics that a remark lists, those with the most messages."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The length, s, of each step of a measurement."""

    warm_s: float = 25.0
    """Time from 'all ready' to the measured interval, in which clocks, routes and caches are filled."""
    calm_s: float = 30.0
    profile_s: float = 20.0

    @classmethod
    def of(cls, *, quick: bool) -> Lengths:
        """Return the usual lengths or, with `quick`, lengths that only prove that the bench runs."""
        return cls(10.0, 8.0, 5.0) if quick else cls()


@dataclass(frozen=True, slots=True)
class Observed:
    """The observations of a running product over an interval."""

    cores: list[Cores]
    pace: float | None
    """Simulated seconds per second; None for a real fleet."""
    interval: Interval

    @property
    def offered(self) -> float:
        """Load that the fleet generates, relative to real time; a simulated fleet waits for its worker."""
        return 1.0 if self.pace is None or self.pace >= FULL_PACE else self.pace


def measure_fleet(
    progress: Progress,
    quick: bool,
    fleet: str | None,
    suffix: str,
    beside: Callable[[ExitStack], None] = lambda _: None,
) -> dict[str, Value]:
    """Run `up` on a fleet and return its figures; each key ends with `suffix`.

    `beside` starts an additional load once all services are ready; the stack passed to it ends the load.
    Raises CannotRun.
    """
    lengths = Lengths.of(quick=quick)
    with running_product(progress, fleet) as product, ExitStack() as stack:
        beside(stack)
        observed = observe(product, lengths, progress)
        splits = _profiled(product, lengths, progress)
        figures = core_figures(observed, suffix) | age_figures(observed.interval, suffix)
        return figures | _cost_figures(product, observed, splits, suffix)


def observe(product: Product, lengths: Lengths, progress: Progress) -> Observed:
    """Let a product warm up, observe it for an interval, and read this interval from its log."""
    progress(f"{product.fleet}: {lengths.warm_s:g} s until it is warm")
    time.sleep(lengths.warm_s)
    progress(f"{product.fleet}: processor time over {lengths.calm_s:g} s")
    before, sim_before_s, begin_ns = product.cpu_times(), product.sim_now_s(), time.time_ns()
    time.sleep(lengths.calm_s)
    after, sim_after_s, end_ns = product.cpu_times(), product.sim_now_s(), time.time_ns()
    pace = None
    if sim_before_s is not None and sim_after_s is not None:
        pace = (sim_after_s - sim_before_s) / (after.at_s - before.at_s)
    progress(f"{product.fleet}: reading the log")
    interval = read_interval(product.bootstrap, begin_ns, end_ns, simulated=pace is not None)
    return Observed(after.cores_since(before), pace, interval)


def core_figures(observed: Observed, suffix: str) -> dict[str, Value]:
    """Return the cores that all services use together, each kind of service, and a single prober."""
    pace = observed.pace
    by_kind: dict[str, list[float]] = {}
    for row in observed.cores:
        by_kind.setdefault(row.kind, []).append(row.cores)
    at = None if pace is None else f"at {pace:.2f} of real time"
    figures: dict[str, Value] = {
        f"cores{suffix}": Figure(sum(row.cores for row in observed.cores), "cores", at)
    }
    for kind, cores in by_kind.items():
        note = None if len(cores) == 1 else f"{len(cores)} services, most {max(cores):.3f}"
        figures[f"{kind}s_cores{suffix}" if kind == "prober" else f"{kind}_cores{suffix}"] = Figure(
            sum(cores), "cores", note
        )
    if "prober" in by_kind:
        figures[f"prober_cores{suffix}"] = Figure(float(np.median(by_kind["prober"])), "cores", "median")
    if pace is not None:
        figures[f"pace{suffix}"] = Figure(pace, "s/s", "simulated seconds per second")
        # a fleet that waits for its worker offers less than real time does
        workers = sum(by_kind.get("worker", []))
        figures[f"worker_cores{suffix}"] = Figure(
            workers / observed.offered,
            "cores",
            f"processor seconds per simulated second; {workers:.2f} cores {at}",
        )
    return figures


def age_figures(interval: Interval, suffix: str) -> dict[str, Value]:
    """Return the ages of all kinds of evidence, the latency of clock offsets, and the message rates."""
    figures: dict[str, Value] = {}
    for name, topic in EVIDENCE.items():
        figures |= _ages_of(interval, name, topic, suffix)
    figures |= _offsets(interval, suffix)
    seconds = interval.seconds
    for topic, count in sorted(interval.messages.items(), key=lambda row: -row[1])[:TOPICS_NAMED]:
        key = topic.removeprefix("fabric.").replace(".", "_").replace("-", "_")
        figures[f"messages_per_s_{key}{suffix}"] = Figure(
            count / seconds, "1/s", f"{interval.sizes[topic] / count:.0f} bytes each"
        )
    if interval.probe_samples:
        samples, messages = sum(interval.probe_samples), len(interval.probe_samples)
        figures[f"samples_per_message{suffix}"] = Figure(
            samples / messages, "samples", f"of {messages} messages of fabric.probes"
        )
    figures[f"messages_per_s{suffix}"] = Figure(
        sum(interval.messages.values()) / seconds,
        "1/s",
        f"{sum(interval.sizes.values()) / seconds / 1e3:.0f} kB/s, {len(interval.messages)} topics",
    )
    return figures


def _offsets(interval: Interval, suffix: str) -> dict[str, Value]:
    """Return the time from the end of a window until its clock offsets are in the log, as figures."""
    keys = [f"offsets_ms_p{percent}{suffix}" for percent in (50, 99)]
    ages = interval.ages.get(CLOCK_OFFSETS.name)
    late_s = (
        None if ages is None else ages.record_ages_s(interval.clock, (interval.begin_ns, interval.end_ns))
    )
    if late_s is None or not len(late_s):
        return dict.fromkeys(keys, Missing("no offsets were published"))
    return {
        key: Figure(float(np.percentile(late_s, percent)) * 1e3, "ms", f"{len(late_s)} records")
        for key, percent in zip(keys, (50, 99), strict=True)
    }


def _ages_of(interval: Interval, name: str, topic: str, suffix: str) -> dict[str, Value]:
    keys = [f"{name}_age_s_p{percent}{suffix}" for percent in (50, 99)]
    if topic not in interval.ages:
        return dict.fromkeys(keys, Missing(f"{topic} had no record"))
    ages, clock, span_ns = interval.ages[topic], interval.clock, (interval.begin_ns, interval.end_ns)
    record_ages_s = ages.record_ages_s(clock, span_ns)
    note = f"{len(record_ages_s)} records"
    measured_s = record_ages_s
    if name == "queue_evidence":
        # it also grows while no record comes
        measured_s = ages.reader_ages_s(clock, span_ns)
        if len(record_ages_s):
            note += f", when appended p99 {np.percentile(record_ages_s, 99):.3f} s"
        note += f", slots combined {max(interval.folds, default=1)}"
    if not len(measured_s):
        return dict.fromkeys(keys, Missing(f"{topic} had no record in {interval.seconds:.0f} s"))
    return {
        key: Figure(float(np.percentile(measured_s, percent)), "s", note)
        for key, percent in zip(keys, (50, 99), strict=True)
    }


def _profiled(product: Product, lengths: Lengths, progress: Progress) -> Split | Missing:
    workers = product.workers()
    if len(workers) != 1:
        return Missing(f"{len(workers)} workers, expected one to profile")
    progress(f"{product.fleet}: profiling the worker for {lengths.profile_s:g} s")
    return profile(workers[0], lengths.profile_s)


def _cost_figures(
    product: Product, observed: Observed, worker: Split | Missing, suffix: str
) -> dict[str, Value]:
    """Return the worker's processor time by kind, per probe batch, and per slot and link."""
    keys = [f"{kind}_us_per_message{suffix}" for kind in ("transport", "operators")]
    keys += [f"inference_cores{suffix}", f"inference_us_per_slot_and_link{suffix}"]
    if isinstance(worker, Missing):
        return dict.fromkeys(keys, worker)
    simulated = observed.pace is not None
    interval = read_interval(product.bootstrap, worker.begin_ns, worker.end_ns, simulated=simulated)
    probes, every = interval.messages.get(PROBES.name, 0), sum(interval.messages.values())
    if not probes:
        return dict.fromkeys(keys, Missing("no probe batch was published"))
    shares = ", ".join(f"{kind} {worker.seconds[kind] / worker.total_s:.0%}" for kind in KINDS)
    figures: dict[str, Value] = {}
    for kind in ("transport", "operators"):
        us = worker.seconds[kind] * 1e6
        note = f"per message of fabric.probes, {us / every:.0f} us per message of all topics; {shares}"
        figures[f"{kind}_us_per_message{suffix}"] = Figure(us / probes, "us", note)
    inference_s = worker.seconds["inference"]
    figures[f"inference_cores{suffix}"] = Figure(
        inference_s / worker.span_s / observed.offered,
        "cores",
        f"{shares}; {worker.samples} samples in {worker.span_s:.0f} s",
    )
    links = product.links()
    figures[f"inference_us_per_slot_and_link{suffix}"] = (
        Figure(
            inference_s * 1e6 / (interval.slots * links),
            "us",
            f"{interval.slots} slots of {links} links, slots combined {max(interval.folds)}",
        )
        if interval.slots
        else Missing("no queues were published")
    )
    return figures
