"""Measures queue inference on shared queues that it does not model: depths, bounds, utilisation, cost.

The truth is `_truth`: every link one queue with batches, on-off sources and incasts, at 10 Gbit/s. Command:
`python -m fabrictime.bench.detect.shared_queues [--quick] [--nics N] [--rate PPS] [--batch PACKETS]`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._truth import LeafSpine, Traffic
from fabrictime.bench.detect.shared_fabric import EPOCH_NS, SLOT_NS, Costs, Scene, draw, link_numbers
from schemas.records import LinkQueues

Float64s = NDArray[np.float64]

WARM_UP_NS: Final = 1_500_000_000
"""Time until floors are known and depths are calibrated, which is not measured."""
IDLE_BYTES: Final = 3_000.0
EVIDENCE_SIGMAS: Final = 5.0
SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """The conditions of a row of the table: its fabric and its probes."""

    nics: int
    rate_pps: int
    batch: int
    even: bool = True

    @property
    def title(self) -> str:
        """A short label of the row."""
        return f"{self.nics} NICs, {'even' if self.even else 'random'}, {self.rate_pps}/s, batch {self.batch}"


ROWS: Final = (
    *(Row(16, rate, batch) for rate in (4_000, 2_000, 1_000) for batch in (8, 48)),
    Row(16, 4_000, 8, even=False),
    Row(16, 2_000, 8, even=False),
    Row(32, 2_000, 8, even=False),
    Row(32, 4_000, 8),
    Row(32, 2_000, 8),
    Row(32, 1_000, 8),
)


@dataclass(slots=True)
class Found:
    """The measured figures of a row; depths are in bytes."""

    row: Row
    seed: int
    ours: float
    zero: float
    last_slot: float
    perfect: float
    ours_loaded: float
    last_slot_loaded: float
    idle_rms: float
    idle_above: float
    covered: int
    bounds: int
    utilisation_covered: int
    utilisation_bounds: int
    utilisation_mean: float
    utilisation_worst: float
    above_evidence: int
    published: float
    cores: float

    def line(self) -> str:
        """Return the row as one line of text."""
        rms = "/".join(
            f"{rms_bytes / 1e3:.1f}" for rms_bytes in (self.ours, self.zero, self.last_slot, self.perfect)
        )
        used = self.utilisation_covered / max(1, self.utilisation_bounds)
        return ", ".join(
            (
                f"{self.row.title}: published {self.published:.3f}",
                f"rms kB ours/zero/last/perfect {rms} ({self.ours / self.perfect:.2f})",
                f"loaded over last {self.ours_loaded / self.last_slot_loaded:.2f}",
                f"bound {self.covered / max(1, self.bounds):.3f}",
                f"idle {self.idle_rms / 1e3:.1f} kB {self.idle_above:.3f}",
                f"utilisation {self.utilisation_mean:.3f} {self.utilisation_worst:.3f} {used:.3f}",
                f"above evidence {self.above_evidence}",
                f"{self.cores:.2f} cores",
                f"seed {self.seed}",
            )
        )


def depths(scene: Scene, records: list[LinkQueues]) -> tuple[Float64s, Float64s, NDArray[np.bool_]]:
    """Return published depths and bounds, [slots, links], and whether each slot was published, [slots]."""
    number = link_numbers(scene.fabric)
    shape = scene.slots.depth_bytes.shape
    depth, bound, there = np.zeros(shape), np.zeros(shape), np.zeros(shape[0], bool)
    for record in records:
        if record["slot_ns"] >= SECOND_NS:
            continue
        fold = record["slot_ns"] // SLOT_NS
        first = (record["window_start_ns"] - EPOCH_NS) // SLOT_NS
        there[max(0, first) : max(0, first + record["slots"] * fold)] = True
        for link in record["links"]:
            column = number[link["link"]]
            for part in range(fold):
                at = first + np.asarray(link["slot"], np.int64) * fold + part
                fits = (at >= 0) & (at < shape[0])
                depth[at[fits], column] = np.asarray(link["depth_bytes"])[fits]
            bound[max(0, first) : max(0, first + record["slots"] * fold), column] = link["bound_bytes"]
    return depth, bound, there


def perfect(scene: Scene) -> Float64s:
    """Return depths interpolated linearly from the true queues at the probes' times, [slots, links]."""
    count, links = scene.slots.depth_bytes.shape
    at, met, link = _met(scene)
    edges = np.arange(count + 1) * float(SLOT_NS)
    depths = np.zeros((count, links))
    for number in range(links):
        at_link = link == number
        if at_link.sum() < 2:
            continue
        order = np.argsort(at[at_link])
        t, y = at[at_link][order], met[at_link][order]
        area = np.concatenate([[0.0], np.cumsum(np.diff(t) * (y[1:] + y[:-1]) / 2)])
        y_edge = np.interp(edges, t, y)
        k = np.clip(np.searchsorted(t, edges, side="right") - 1, 0, len(t) - 1)
        until = area[k] + (edges - t[k]) * (y[k] + y_edge) / 2
        depths[:, number] = np.diff(until) / SLOT_NS
    return depths * (scene.fabric.rate_bps / 8e9)


def _met(scene: Scene) -> tuple[Float64s, Float64s, NDArray[np.int64]]:
    at, met = scene.stamps.met_at_ns, scene.stamps.met_ns
    some = ~np.isnan(at)
    return at[some], met[some], scene.stamps.links[some]


def evidence(scene: Scene) -> Float64s:
    """Return the largest delay, bytes, of the probes that crossed each link near each slot, [slots, links].

    The time at which a probe was sent counts as well as its arrival at the link.
    """
    stamps, (count, links) = scene.stamps, scene.slots.depth_bytes.shape
    hops = stamps.probes.there.shape[1]
    largest = np.full((count + 2, links), -np.inf)
    for leg in (slice(0, hops), slice(hops, 2 * hops)):
        total = np.nansum(stamps.met_ns[:, leg], axis=1)
        for hop in range(leg.start, leg.stop):
            crosses = ~np.isnan(stamps.met_at_ns[:, hop])
            sent = stamps.t1 if leg.start == 0 else stamps.t3
            for at_ns in (sent[crosses], stamps.met_at_ns[crosses, hop]):
                slot = (at_ns // SLOT_NS).astype(np.int64)
                fits = slot < count
                of = (slot[fits] + 1, stamps.links[crosses, hop][fits])
                np.maximum.at(largest, of, total[crosses][fits])
    near = np.maximum(np.maximum(largest[:-2], largest[1:-1]), largest[2:])
    # without a probe in or beside a slot, the nearest ones before and behind count
    rows, has_probe = np.arange(count)[:, None], np.isfinite(near)
    before = np.maximum.accumulate(np.where(has_probe, rows, 0), axis=0)
    behind = np.minimum.accumulate(np.where(has_probe, rows, count - 1)[::-1], axis=0)[::-1]
    columns = np.arange(links)
    near = np.where(has_probe, near, np.maximum(near[before, columns], near[behind, columns]))
    return near * (scene.fabric.rate_bps / 8e9)


def found_in(row: Row, seed: int, seconds: float) -> Found:
    """Measure one row and return its figures."""
    traffic = Traffic(batch_packets=row.batch)
    scene = draw(LeafSpine(row.nics), traffic, seed, seconds, row.rate_pps, even=row.even)
    costs = Costs()
    records = [record for _, record in scene.infer(costs)]
    depth, bound, there = depths(scene, records)
    used = there.copy()
    used[: int(WARM_UP_NS // SLOT_NS)] = False
    last = int(np.flatnonzero(there)[-1]) + 1 if there.any() else 0
    columns = np.flatnonzero(scene.crossed)
    cells = np.ix_(used, columns)
    true, ours = scene.slots.depth_bytes[cells], depth[cells]
    before = np.vstack([true[:1], true[:-1]])
    best = perfect(scene)[cells]
    loaded = scene.load[columns] > 0
    stated = bound[cells] > 0
    bounds_ok = np.abs(ours - true) <= bound[cells]
    # 10 m of light and three noises of stamps are no queue: EVIDENCE_SIGMAS of 10 ns and a packet
    slack = scene.fabric.rate_bps / 8e9 * EVIDENCE_SIGMAS * 10 + 1_500
    idle = ours[:, ~loaded]
    errors, covered = _utilisation(scene, records)
    return Found(
        row,
        seed,
        _rms(ours - true),
        _rms(true),
        _rms(before - true),
        _rms(best - true),
        _rms((ours - true)[:, loaded]),
        _rms((before - true)[:, loaded]),
        _rms(idle),
        float((idle > IDLE_BYTES).mean()),
        int((bounds_ok & stated).sum()),
        int(stated.sum()),
        int(covered.sum()),
        len(covered),
        float(np.abs(errors).mean()),
        float(np.abs(errors).max()),
        int((ours > evidence(scene)[cells] + slack).sum()),
        float(there[int(WARM_UP_NS // SLOT_NS) : last].mean()),
        (costs.map_s + sum(costs.solve_s)) / seconds,
    )


def _utilisation(scene: Scene, records: list[LinkQueues]) -> tuple[Float64s, NDArray[np.bool_]]:
    """Return errors of the utilisation of all links and seconds, and whether the bound holds."""
    number = link_numbers(scene.fabric)
    errors, covered = [], []
    for record in records:
        end = (record["window_start_ns"] - EPOCH_NS) // SLOT_NS + SECOND_NS // SLOT_NS
        if record["slot_ns"] != SECOND_NS or end > len(scene.slots.busy):
            continue
        for link in record["links"]:
            used, bound = link["utilisation"], link["utilisation_bound"]
            if used is None or bound is None:
                continue
            begin = max(0, end - 10 * SECOND_NS // SLOT_NS)
            true = float(scene.slots.busy[begin:end, number[link["link"]]].mean())
            errors.append(used - true)
            covered.append(abs(used - true) <= bound)
    return np.array(errors or [np.nan]), np.array(covered, bool)


def _rms(values: Float64s) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else float("nan")


def figures_of(rows: list[Found]) -> dict[str, Value]:
    """Return the figures of all rows; for several rows, the worst value with the name of its row."""
    figures: dict[str, Value] = {}
    for measured_row in rows:
        if measured_row.row.nics == 16 and measured_row.row.even:
            key = f"queue_rms_over_perfect_probe_{measured_row.row.rate_pps}pps_batch{measured_row.row.batch}"
            figures[key] = Figure(measured_row.ours / measured_row.perfect, note=measured_row.line())

    def worst(key: str, values: list[float], *, highest: bool = True) -> None:
        at = int(np.argmax(values) if highest else np.argmin(values))
        figures[key] = Figure(values[at], note=f"the worst of {len(rows)} rows: {rows[at].row.title}")

    worst("queue_rms_over_last_slot", [result.ours_loaded / result.last_slot_loaded for result in rows])
    worst("idle_link_slots_above_3kb", [result.idle_above for result in rows])
    worst("depth_above_probe_evidence", [float(result.above_evidence) for result in rows])
    worst("bound_bytes_coverage", [result.covered / max(1, result.bounds) for result in rows], highest=False)
    worst(
        "utilisation_bound_coverage",
        [result.utilisation_covered / max(1, result.utilisation_bounds) for result in rows],
        highest=False,
    )
    return figures


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about four minutes, or a quarter of one with `quick`."""
    rows = [Row(16, 4_000, 8), Row(16, 1_000, 8)] if quick else ROWS
    results = []
    for row in rows:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
        progress(f"shared queues: {row.title}, seed {seed}")
        results.append(found_in(row, seed, 2.5 if quick else 5.0))
        progress(results[-1].line())
    return figures_of(results)


def main() -> int:
    """Measure one row as the command line describes it, or all rows; print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m fabrictime.bench.detect.shared_queues")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--nics", type=int, help="measure one row: its NICs")
    parser.add_argument("--rate", type=int, default=4_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--random", action="store_true", help="exponential gaps instead of a schedule")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    if options.nics:
        seed = options.seed or int(np.random.SeedSequence().generate_state(1)[0])
        row = Row(options.nics, options.rate, options.batch, even=not options.random)
        print(found_in(row, seed, options.seconds).line())
        return 0
    for key, value in measure(lambda line: print(line, file=sys.stderr), options.quick).items():
        print(key, value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
