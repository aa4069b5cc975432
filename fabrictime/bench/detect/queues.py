"""Measures queue inference against queues of known depth: accuracy packet by packet, speed at a thousand
NICs.

Samples of the packet-level simulation pass the pipeline: timestamps with noise, batches, slots above the
floor, `PathQueueing`, the shard's solver, `LinkQueues`. By hand: `python -m fabrictime.bench.detect.queues
[--quick]`.
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.detect._batches import EPOCH_NS, FLUSH_NS, batches_of
from native.core import ClockLine, ProbeColumns
from native.core.queues import QueueSolver
from native.sim import Dcqcn, PacketSim
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas import codec
from schemas.ids import host_of
from schemas.records import Leg, LinkQueues, PathMap, PathMaps, PathSource
from streams.delays.queueing import SourceQueueing
from streams.links.schedule.probe_schedule import plan_shard
from streams.queues.inference import ShardQueues, fold_of, knots_of
from streams.runtime.pipeline_constants import SUB_SLOTS
from streams.runtime.route_table import RouteTable, pair_key
from streams.runtime.tables import Member

MS: Final = 1_000_000
RATE_BPS: Final = 10_000_000_000
SLOT_NS: Final = MS
WARM_UP_NS: Final = 100 * MS
"""Time until the floors are known, which is not measured."""
PROBES_PPS: Final = 4_000.0
PEERS: Final = 10
PATHS: Final = 8
PROBE_BYTES: Final = 82
STAMP_NOISE_NS: Final = 4.0
STAMP_STEP_NS: Final = 8.0
CLOCK_ERROR_NS: Final = 5.0
TARGET_BYTES: Final = 4_000.0


class Traffic:
    """Traffic of the fleet in addition to the probes: `load` of the NICs' rate between random NICs.

    A third of it are single packets, the rest messages from 64 kB to 8 MB under rate control. With `incast`,
    8 to 24 senders hit one receiver at once, with 32 kB each, every 4 ms.
    """

    def __init__(
        self,
        fleet: Fleet,
        sim: PacketSim,
        rng: np.random.Generator,
        until_ns: float,
        load: float,
        incast: bool,
    ) -> None:
        nics = fleet.nics
        self.paths: list[Any] = []
        """Paths of the flows, in the order of their numbers."""
        source = np.repeat(np.arange(nics), 16)
        single = fleet.paths(source, self._others(rng, source, nics), rng.integers(1024, 65536, len(source)))
        sim.add_poisson(single, load * RATE_BPS / 3 / 16, 1500)
        self.paths.append(single)
        mean = (8e6 - 64e3) / np.log(8e6 / 64e3)
        gap_ns = mean * 8e9 / (load * RATE_BPS * 2 / 3 * nics)
        at = np.cumsum(rng.exponential(gap_ns, int(1.2 * until_ns / gap_ns) + 50))
        at = at[at < until_ns]
        size = np.round(64e3 * np.exp(rng.uniform(0, np.log(8e6 / 64e3), len(at))))
        source = rng.integers(0, nics, len(at))
        paths = fleet.paths(source, self._others(rng, source, nics), rng.integers(1024, 65536, len(at)))
        sim.add_messages(paths, size, RATE_BPS, at, 1500, control=Dcqcn())
        self.paths.append(paths)
        now = rng.exponential(4 * MS)
        while incast and now < until_ns:
            senders = min(int(rng.integers(8, 25)), nics - 1)
            members = rng.permutation(nics)[: senders + 1]
            paths = fleet.paths(members[1:], np.full(senders, members[0]), rng.integers(1024, 65536, senders))
            sim.add_messages(paths, 32_000, RATE_BPS, now, 1500)
            self.paths.append(paths)
            now += rng.exponential(4 * MS)

    @staticmethod
    def _others(rng: np.random.Generator, source: Any, nics: int) -> Any:
        return (source + rng.integers(1, nics, len(source))) % nics


class Run:
    """One simulated stretch of traffic and probes, processed by the pipeline's pure functions."""

    def __init__(self, nics: int, seed: int, seconds: float, load: float, incast: bool) -> None:
        rng = np.random.default_rng(seed)
        self.fleet = fleet = Fleet(Shape.of(nics, rate_bps=RATE_BPS), seed)
        self.until_ns = seconds * 1e9
        sim = PacketSim(
            fleet.rate_bps,
            fleet.delay_ns,
            fleet.buffer_bytes,
            slot_ns=SLOT_NS,
            seed=seed,
            ecn=(20_000, 200_000, 0.1),
        )
        traffic = Traffic(fleet, sim, rng, self.until_ns, load, incast)
        nic = np.repeat(np.arange(nics), PEERS * PATHS)
        choice = [rng.permutation(np.delete(np.arange(nics), prober))[:PEERS] for prober in range(nics)]
        peer = np.repeat(np.concatenate(choice), PATHS)
        port = 9320 + np.tile(np.arange(PATHS), nics * PEERS)
        there, back = fleet.round_trips(nic, peer, port)
        self.book = _book(fleet, nic, peer, port, there, back)
        _add_probes(fleet, sim, self.book)
        self.crossed = np.zeros(len(fleet.rate_bps), bool)
        for paths in (there, back):
            inner = np.ones(len(paths.link), bool)
            inner[np.asarray(paths.start[:-1])] = False
            self.crossed[np.asarray(paths.link)[inner]] = True
        self.flow_bps: list[dict[str, float]] = []
        """Rate, bit/s, of the sent flows over each link, for each complete second."""
        sent = np.zeros(sum(len(paths.start) - 1 for paths in traffic.paths))
        for second in range(1, int(seconds) + 1):
            sim.run(second * 1e9)
            now = np.asarray(sim.flows().sent_bytes, np.float64)
            self.flow_bps.append(_over_links(fleet, traffic.paths, now - sent))
            sent = now
        sim.run(self.until_ns)
        self.truth = sim.truth()
        self.probes = sim.probes()
        self._rng = rng

    def batches(self) -> list[tuple[int, ProbeColumns]]:
        """Return (flush time, batch) of all NICs, with stamps as a NIC would give them."""
        p, rng = self.probes, self._rng
        names = self.fleet.nic_ids
        is_complete = ~np.isnan(p.reverse_ns)
        t1, forward, turnaround, reverse = (
            np.asarray(column[is_complete], np.float64)
            for column in (p.t1_ns, p.forward_ns, p.turnaround_ns, p.reverse_ns)
        )
        nic, peer, path = p.nic[is_complete], p.peer[is_complete], p.path[is_complete]
        true = [t1, t1 + forward, t1 + forward + turnaround, t1 + forward + turnaround + reverse]
        error = rng.normal(0, CLOCK_ERROR_NS, self.fleet.nics)
        of_link = [nic, peer, peer, nic]
        read = [
            np.round((at + error[of] + rng.normal(0, STAMP_NOISE_NS, len(at))) / STAMP_STEP_NS)
            * STAMP_STEP_NS
            for at, of in zip(true, of_link, strict=True)
        ]
        stamps: list[Any] = [EPOCH_NS + stamp.astype(np.int64) for stamp in read]
        return batches_of(names, (nic, peer, path), (true[0], true[3]), stamps)

    def infer(self, flows: bool = False) -> list[LinkQueues]:
        """Return the `LinkQueues` that the pipeline infers; with `flows` it also uses flow reports."""
        source = SourceQueueing("bench/0", SLOT_NS // SUB_SLOTS)
        rates = dict(zip(self.fleet.link_ids, self.fleet.rate_bps.tolist(), strict=True))
        shard = ShardQueues("fabric", lambda link: int(rates[link]))
        line = ClockLine(EPOCH_NS, 0, 0.0, 10.0)
        lines = dict.fromkeys(self.fleet.nic_ids, line)
        members = {nic: Member(nic, host_of(nic), "fabric", nic) for nic in self.fleet.nic_ids}
        records: list[LinkQueues] = []
        now = 0
        for offset, (when, batch) in enumerate(self.batches()):
            if when != now:
                for record in source.take(members):
                    shard.take(record, self.book)
                second = int(when - EPOCH_NS - 3 * FLUSH_NS) // 1_000_000_000
                if flows and 0 <= second < len(self.flow_bps):
                    shard.set_flow_rates(self.flow_bps[second])
                while shard.ready():
                    records += shard.solve(0)
                now = when
            source.add(batch, when, offset, lines)
        return records

    def depths(self, records: list[LinkQueues]) -> tuple[Any, Any, Any]:
        """Return true depth, inferred depth and bound, bytes, each [slots, links crossed], after the
        warm-up."""
        number = {name: k for k, name in enumerate(self.fleet.link_ids)}
        published, bound = np.zeros(self.truth.depth_bytes.shape), np.zeros(self.truth.depth_bytes.shape)
        last = 0
        for record in records:
            if record["slot_ns"] != SLOT_NS:
                continue
            first = (record["window_start_ns"] - EPOCH_NS) // SLOT_NS
            last = max(last, first + record["slots"])
            for link in record["links"]:
                column = number[link["link"]]
                at = first + np.asarray(link["slot"], np.int64)
                fits = (at >= 0) & (at < len(published))
                published[at[fits], column] = np.asarray(link["depth_bytes"])[fits]
                bound[max(0, first) : first + record["slots"], column] = link["bound_bytes"]
        span = slice(WARM_UP_NS // SLOT_NS, min(last, len(published)))
        true = self.truth.depth_bytes[span][:, self.crossed].astype(np.float64)
        return true, published[span][:, self.crossed], bound[span][:, self.crossed]


def _add_probes(fleet: Fleet, sim: PacketSim, book: RouteTable) -> None:
    """Let all NICs probe in the turns that the solve stage schedules, with one probe per turn."""
    number = {name: at for at, name in enumerate(fleet.nic_ids)}
    slot_ns = round(1e9 / PROBES_PPS)
    plans = plan_shard(dict.fromkeys(fleet.nic_ids, (slot_ns, 1)), book)
    rows = [
        (number[nic], number[peer], port, (plan.phase + slot) * slot_ns, 1e9 / (len(plan.paths) * slot_ns))
        for nic, plan in plans.items()
        for slot, (peer, port) in enumerate(plan.paths)
    ]
    nic, peer, port, start_ns, rate_pps = (np.array(column) for column in zip(*rows, strict=True))
    there, back = fleet.round_trips(nic, peer, port)
    sim.add_probes(there, back, nic, peer, port, rate_pps=rate_pps, start_ns=start_ns, jitter_ns=slot_ns / 2)


def _over_links(fleet: Fleet, paths: list[Any], sent_bytes: Any) -> dict[str, float]:
    """Return the rate, bit/s, over each link of flows that sent `sent_bytes` within a second."""
    start = 0
    total = np.zeros(len(fleet.rate_bps))
    for some in paths:
        lengths = np.diff(np.asarray(some.start))
        weights = np.repeat(sent_bytes[start : start + len(lengths)], lengths)
        total += np.bincount(np.asarray(some.link), weights=weights, minlength=len(total))
        start += len(lengths)
    return {name: 8 * float(bps) for name, bps in zip(fleet.link_ids, total, strict=True)}


def _book(fleet: Fleet, nic: Any, peer: Any, port: Any, there: Any, back: Any) -> RouteTable:
    """Return the route table as tracing would fill it."""
    book, ids, names = RouteTable(), fleet.link_ids, fleet.nic_ids
    records: dict[tuple[int, int], list[PathMap]] = {}
    for row, (a, b, entropy) in enumerate(zip(nic.tolist(), peer.tolist(), port.tolist(), strict=True)):
        for pair, leg, paths in (((a, b), Leg.REQUEST, there), ((b, a), Leg.ANSWER, back)):
            hops = [ids[link] for link in paths.of(row)]
            records.setdefault(pair, []).append(
                {
                    "path": entropy,
                    "leg": leg,
                    "links": hops,
                    "found": PathSource.TRACED,
                    "complete": True,
                    "since_ns": 0,
                    "changes": 0,
                    "contradiction": None,
                }
            )
    for (a, b), maps in records.items():
        record: PathMaps = {
            "nic": names[a],
            "peer": names[b],
            "shard": "fabric",
            "run": 1,
            "traced_ns": 0,
            "paths": maps,
        }
        book.take(pair_key(names[a], names[b]).encode(), codec.encode(PathMaps, record))
    return book


def measure(progress: Progress, quick: bool = False, seeds: int = 3) -> dict[str, Value]:
    """Measure and return the figures by key, in about six minutes, or half of one with `quick`."""
    figures = _accuracy(progress, 1 if quick else seeds, 0.3 if quick else 0.8)
    figures.update(_utilisation(progress, quick))
    figures.update(_speed(progress, quick))
    return figures


def _accuracy(progress: Progress, seeds: int, seconds: float) -> dict[str, Value]:
    figures: dict[str, Value] = {}
    for name, incast in (("", False), ("_incast", True)):
        squares: dict[str, list[float]] = {"ours": [], "zero": [], "last_window": []}
        inside = []
        drawn = np.random.SeedSequence().generate_state(seeds).tolist()
        for seed in drawn:
            progress(f"queues packet by packet: 64 NICs, {seconds:g} s, seed {seed}{name.replace('_', ', ')}")
            run = Run(64, int(seed), seconds, 0.6, incast)
            true, published, bound = run.depths(run.infer())
            squares["ours"].append(float(((published - true) ** 2).mean()))
            squares["zero"].append(float((true**2).mean()))
            squares["last_window"].append(float((np.diff(true, axis=0) ** 2).mean()))
            has_bound = bound > 0
            inside.append(float((np.abs(published - true)[has_bound] <= bound[has_bound]).mean()))
        rms = {key: float(np.sqrt(np.mean(values))) for key, values in squares.items()}
        note = f"seeds {', '.join(str(seed) for seed in drawn)}"
        figures[f"queue_error_bytes_rms{name}"] = Figure(rms["ours"], "bytes", note)
        figures[f"queue_error_bytes_rms{name}_answering_zero"] = Figure(rms["zero"], "bytes")
        figures[f"queue_error_bytes_rms{name}_last_window"] = Figure(rms["last_window"], "bytes")
        figures[f"queue_bound_coverage{name}"] = Figure(float(np.mean(inside)), "1", "of queueing links")
    return figures


def _utilisation(progress: Progress, quick: bool) -> dict[str, Value]:
    seconds = 3.0 if quick else 12.0
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    progress(f"utilisation: 16 NICs, {seconds:g} s, seed {seed}")
    run = Run(16, seed, seconds, 0.5, False)
    truth = run.truth.busy
    number = {name: k for k, name in enumerate(run.fleet.link_ids)}
    records = [record for record in run.infer() if record["slot_ns"] == 1_000_000_000]
    span = min(10, int(seconds) - 1) * 1000
    if not records:
        return {"utilisation_error_10s_probes_alone": Missing("no second was published")}
    last = records[-1]
    end = (last["window_start_ns"] - EPOCH_NS) // SLOT_NS + 1000
    errors, outside = [], []
    for link in last["links"]:
        utilisation, bound = link["utilisation"], link["utilisation_bound"]
        if link["samples"] * span / 1000 >= 2500 and utilisation is not None and bound is not None:
            true = float(truth[max(0, end - span) : end, number[link["link"]]].mean())
            errors.append(utilisation - true)
            outside.append(abs(errors[-1]) > bound)
    if not errors:
        return {"utilisation_error_10s_probes_alone": Missing("no link had 2,500 probes")}
    note = f"rms over {len(errors)} links, bias {np.mean(errors):+.3f}, seed {seed}"
    of_flows = []
    for record in run.infer(flows=True):
        first = (record["window_start_ns"] - EPOCH_NS) // SLOT_NS
        for link in record["links"] if record["slot_ns"] == 1_000_000_000 and first >= 0 else ():
            if link["from_flows"] and link["utilisation"] is not None:
                true = float(truth[first : first + 1000, number[link["link"]]].mean())
                of_flows.append(link["utilisation"] - true)
    return {
        "utilisation_error_1s": Figure(
            float(np.sqrt(np.mean(np.square(of_flows)))), "1", f"rms over {len(of_flows)} links and seconds"
        )
        if of_flows
        else Missing("no link's utilisation came from flows"),
        "utilisation_error_10s_probes_alone": Figure(float(np.sqrt(np.mean(np.square(errors)))), "1", note),
        "utilisation_bound_coverage_simulated": Figure(1 - float(np.mean(outside)), "1"),
    }


def _speed(progress: Progress, quick: bool) -> dict[str, Value]:
    """Time the solver for 1,024 NICs at the default 1,000 probes/s each, in comparison with non-negative
    Lasso."""
    progress("queue inference of 1,024 NICs against the clock")
    rng = np.random.default_rng(1)
    fleet = Fleet(Shape.of(1024, rate_bps=RATE_BPS), 1)
    nics = fleet.nics
    source = np.repeat(np.arange(nics), 40)
    target = (source + rng.integers(1, nics, len(source))) % nics
    paths = fleet.paths(source, target, 9320 + rng.integers(0, 4, len(source)))
    start, link = np.asarray(paths.start), np.asarray(paths.link)
    inner = np.ones(len(link), bool)
    inner[start[:-1]] = False
    start, link = start - np.arange(len(start)), link[inner]
    queue = _queues(rng, fleet, 200)
    figures: dict[str, Value] = {}
    for name, slot_ms in (("1ms", 1), ("10ms", 10)):
        crossings = 2 * 1000 * nics * slot_ms / 1000 * len(link) / len(source)
        sub = SUB_SLOTS // fold_of(crossings / SUB_SLOTS / len(fleet.rate_bps))
        slots = 20 if quick else 50 if slot_ms == 1 else 20
        n = int(2 * 1000 * nics * slot_ms / 1000 / sub)
        solver = QueueSolver(1500 * 8e9 / fleet.rate_bps, start, link, merge=SUB_SLOTS)
        times_s = []
        for block in range(3):
            route = rng.integers(0, len(source), (slots * sub, n)).astype(np.int32)
            depth = queue[(np.arange(slots * sub) // sub + block * slots) % len(queue)]
            delay = np.stack([_sums(depth[t], start, link, route[t]) for t in range(slots * sub)])
            delay += rng.normal(0, 8, delay.shape)
            at = np.arange(slots * sub + 1) * n
            when = np.sort(rng.random(route.shape)).ravel()
            args = (
                slot_ms * MS / sub,
                at,
                route.ravel(),
                when,
                np.ones(route.size),
                delay.ravel(),
                np.full(route.size, 8.0),
                knots_of(crossings / sub / len(fleet.rate_bps)),
            )
            began = time.process_time()
            solver.solve(*args)
            times_s.append(time.process_time() - began)
        figures[f"queue_inference_realtime_factor_{name}"] = Figure(
            slots * slot_ms / 1e3 / min(times_s),
            note=f"{len(fleet.rate_bps)} links, 1,000 probes/s a NIC, both ways",
        )
        if slot_ms == 1:
            figures["inference_vs_sklearn"] = _against_lasso(
                min(times_s) / slots,
                start,
                link,
                route[-sub:].ravel(),
                delay[-sub:].ravel(),
                len(fleet.rate_bps),
            )
    return figures


def _queues(rng: np.random.Generator, fleet: Fleet, slots: int) -> Any:
    """Draw queues, [slots, links] ns: a link in twenty has one, of some 10 to 300 us, which walks."""
    links = len(fleet.rate_bps)
    depth = np.zeros((slots, links))
    deep = rng.permutation(links)[: links // 20]
    walk = np.cumsum(rng.normal(0, 8_000, (slots, len(deep))), axis=0) + rng.uniform(10e3, 300e3, len(deep))
    depth[:, deep] = np.abs(walk)
    return depth + rng.exponential(600, (slots, links)) * (rng.random((slots, links)) < 0.4)


def _sums(depth: Any, start: Any, link: Any, route: Any) -> Any:
    lengths = start[route + 1] - start[route]
    flat = (
        np.repeat(start[route], lengths)
        + np.arange(lengths.sum())
        - np.repeat(np.cumsum(lengths) - lengths, lengths)
    )
    return np.bincount(
        np.repeat(np.arange(len(route)), lengths), weights=depth[link[flat]], minlength=len(route)
    )


def _against_lasso(ours_s: float, start: Any, link: Any, route: Any, delay: Any, links: int) -> Value:
    if find_spec("sklearn") is None:
        return Missing("scikit-learn is not installed: pip install fabrictime[bench]")
    from scipy.sparse import csc_array
    from sklearn.linear_model import Lasso

    lengths = start[route + 1] - start[route]
    rows = np.repeat(np.arange(len(route)), lengths)
    flat = (
        np.repeat(start[route], lengths)
        + np.arange(len(rows))
        - np.repeat(np.cumsum(lengths) - lengths, lengths)
    )
    at = (rows.astype(np.int32), link[flat].astype(np.int32))
    matrix = csc_array((np.ones(len(rows)), at), shape=(len(route), links))
    times_s = []
    for _ in range(3):
        model = Lasso(alpha=0.1, positive=True, fit_intercept=False, tol=1e-4, max_iter=1000)
        began = time.process_time()
        model.fit(matrix, delay)
        times_s.append(time.process_time() - began)
    return Figure(
        min(times_s) / ours_s,
        note=f"one slot of 1 ms: Lasso {min(times_s) * 1e3:.0f} ms, {model.n_iter_} passes",
    )


if __name__ == "__main__":
    for key, value in measure(lambda line: print(line, file=sys.stderr), "--quick" in sys.argv).items():
        print(key, value)
