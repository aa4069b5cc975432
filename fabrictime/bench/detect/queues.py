"""Measures queue inference against queues of known depth: accuracy on `_truth`, speed at a thousand NICs.

Samples of the true fabric pass the pipeline: timestamps with noise, batches, slots above the floor,
`PathQueueing`, the shard's solver, `LinkQueues`.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._truth import LeafSpine, Traffic
from fabrictime.bench.detect.shared_fabric import EPOCH_NS, SLOT_NS, draw, link_numbers
from fabrictime.bench.detect.shared_queues import depths
from native.core.queues import QueueSolver
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from streams.queues.inference import fold_of, knots_of
from streams.runtime.pipeline_constants import SUB_SLOTS

MS: Final = 1_000_000
RATE_BPS: Final = 10_000_000_000
FABRIC: Final = LeafSpine(64, leaves=8, spines=8)
QUIET: Final = Traffic(incast_every_ns=0.0)
INCASTS: Final = Traffic(incast_every_ns=4e6, incast_bytes=(256e3, 768e3), incast_senders=(8, 24))
"""Traffic without incasts, and with incasts of 8 to 24 senders with 32 kB each."""
EVEN: Final = Traffic(load=(0.43, 0.57), idle=0.0, incast_every_ns=0.0)
"""Traffic of many flows between random NICs. Idle links make loads of links in series inseparable."""
WARM_UP_SLOTS: Final = 100 * MS // SLOT_NS
"""Slots until the floors are known, which are not measured."""
SECOND_NS: Final = 1_000_000_000
PROBES_PPS: Final = 4_000.0


def measure(progress: Progress, quick: bool = False, seeds: int = 3) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or half of one with `quick`."""
    figures = _accuracy(progress, 1 if quick else seeds, 0.3 if quick else 0.8)
    figures.update(_utilisation(progress, quick))
    figures.update(_speed(progress, quick))
    return figures


def _accuracy(progress: Progress, seeds: int, seconds: float) -> dict[str, Value]:
    figures: dict[str, Value] = {}
    for name, traffic in (("", QUIET), ("_incast", INCASTS)):
        squares: dict[str, list[float]] = {"ours": [], "zero": [], "last_window": []}
        inside = []
        drawn = np.random.SeedSequence().generate_state(seeds).tolist()
        for seed in drawn:
            progress(f"queues: {FABRIC.nics} NICs, {seconds:g} s, seed {seed}{name.replace('_', ', ')}")
            scene = draw(FABRIC, traffic, int(seed), seconds, PROBES_PPS)
            published, bound, used = depths(scene, [record for _, record in scene.infer()])
            used[:WARM_UP_SLOTS] = False
            cells = np.ix_(used, np.flatnonzero(scene.crossed))
            true, error = scene.slots.depth_bytes[cells], (published - scene.slots.depth_bytes)[cells]
            squares["ours"].append(float((error**2).mean()))
            squares["zero"].append(float((true**2).mean()))
            squares["last_window"].append(float((np.diff(true, axis=0) ** 2).mean()))
            has_bound = bound[cells] > 0
            inside.append(float((np.abs(error) <= bound[cells])[has_bound].mean()))
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
    scene = draw(LeafSpine(16), EVEN, seed, seconds, PROBES_PPS)
    truth, number = scene.slots.busy, link_numbers(scene.fabric)
    records = [record for _, record in scene.infer() if record["slot_ns"] == SECOND_NS]
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
    for _, record in scene.infer(flow_bps=scene.rates_bps()):
        first = (record["window_start_ns"] - EPOCH_NS) // SLOT_NS
        for link in record["links"] if record["slot_ns"] == SECOND_NS and first >= 0 else ():
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
    """Time the solver for 1,024 NICs at the default 1,000 probes/s each, against non-negative Lasso."""
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
    """Draw queues, [slots, links] ns: one link in twenty has a random-walk queue of some 10 to 300 us."""
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
