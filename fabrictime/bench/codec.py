"""Measures how fast one core turns a message's bytes into a window's figures: decode, encode, fit, reduce.

The figures are rates in samples/s, each the best of many tries. A batch has a prober's 100 ms: 10 peers, 4
paths, coded pairs of 20 us, delays of 5 to 50 us under a clock difference of milliseconds.
`decode_samples_per_second` is for some 500 samples a message, as probers send; the `large` figure for 7,000.
fastavro, the rival, turns the same messages into numpy columns in the same run, alternating with our decoder.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import fastavro
import numpy as np

from fabrictime.bench import Figure, Progress, Target, Value
from native.core import (
    ClockLine,
    NicWindow,
    ProbeColumns,
    avro,
    decode_probe_batch,
    encode_probe_batch,
    solve_mesh,
)
from schemas import codec
from schemas.readers import ReaderMaker
from schemas.records import ClockFits

NAME: Final = "codec"
TARGETS: Final[Mapping[str, Target]] = {
    "decode_samples_per_second": Target("samples/s", ">=", 20e6),
    "decode_vs_fastavro": Target("x", ">=", 10),
    "decode_large_samples_per_second": Target("samples/s"),
    "fastavro_samples_per_second": Target("samples/s"),
    "encode_samples_per_second": Target("samples/s"),
    "bytes_per_sample": Target("bytes"),
    "fit_samples_per_second": Target("samples/s"),
    "reduce_samples_per_second": Target("samples/s"),
    "window_ns_per_sample": Target("ns"),
    "mesh_1000_nics_10_peers_ms": Target("ms"),
    "clock_fits_600_pairs_decode_ms": Target("ms"),
    "clock_fits_600_pairs_vs_general": Target("x", ">=", 5),
}

T0_NS: Final = 1_763_700_000_000_000_000
NIC: Final = "host-0000/eth0"
PEERS: Final = 10
PATHS: Final = 4
FLUSH_NS: Final = 100_000_000


def run(progress: Progress, quick: bool = False) -> Mapping[str, Value]:
    """Measure and return the figures by key, in about 10 s, or 1 s with `quick`."""
    seconds = 0.1 if quick else 1.5
    rng = np.random.default_rng(1)
    figures: dict[str, Value] = {}

    progress("decode: messages of a 100 ms flush")
    offsets = rng.normal(0, 3e6, PEERS)
    drifts = rng.normal(0, 12_000, PEERS)
    batches = [batch_of(rng, number, 520, offsets, drifts) for number in range(10)]
    messages = [codec.header("ProbeBatch") + encode_probe_batch(batch) for batch in batches]
    samples = sum(len(batch.sent) for batch in batches)
    for decoded in (decode_probe_batch(messages[3], codec.HEADER_BYTES), by_fastavro(messages[3])):
        if not _same(decoded, batches[3]):
            raise RuntimeError("bench codec: a decoder gave other columns than were written")
    ours, fastavro_s = alternately(
        lambda: [decode_probe_batch(m, codec.body_start(m, "ProbeBatch")) for m in messages],
        lambda: [by_fastavro(m) for m in messages],
        seconds,
    )
    per_message = samples // len(messages)
    figures["decode_samples_per_second"] = Figure(
        samples / ours, note=f"{per_message} samples a message, one core"
    )
    figures["decode_vs_fastavro"] = fastavro_s / ours
    figures["fastavro_samples_per_second"] = samples / fastavro_s
    figures["bytes_per_sample"] = sum(map(len, messages)) / samples

    progress("decode: messages of 7,000 samples")
    large = encode_probe_batch(batch_of(rng, 0, 7_000, offsets, drifts))
    columns = decode_probe_batch(large, 0)
    figures["decode_large_samples_per_second"] = len(columns.sent) / best(
        lambda: decode_probe_batch(large, 0), seconds
    )

    progress("encode")
    figures["encode_samples_per_second"] = samples / best(
        lambda: [encode_probe_batch(batch) for batch in batches], seconds
    )

    progress("fit and reduce: one NIC's window of a second")
    window = window_of(batches)
    prober = ClockLine(T0_NS, 0, 0.0, 10.0)
    lines = {
        name: ClockLine(T0_NS, -round(offset), -float(drift), 10.0)
        for name, offset, drift in zip(peer_names(), offsets, drifts, strict=True)
    }
    add_s = best(lambda: window_of(batches), seconds)
    fit_s = best(window.fit, seconds)
    reduce_s = best(lambda: window.delays(prober, lines), seconds)
    figures["fit_samples_per_second"] = samples / fit_s
    figures["reduce_samples_per_second"] = samples / reduce_s
    figures["window_ns_per_sample"] = (add_s + fit_s + reduce_s) / samples * 1e9

    progress("mesh: 1,000 NICs, 10 peers each")
    a = np.repeat(np.arange(1000), 10)
    b = (a + rng.integers(1, 1000, a.size)) % 1000
    sigma = rng.uniform(5, 50, a.size)
    value = np.diff(rng.normal(0, 3e6, 1000)[np.stack([a, b])], axis=0)[0] + rng.normal(0, 1, a.size) * sigma
    figures["mesh_1000_nics_10_peers_ms"] = best(lambda: solve_mesh(1000, a, b, value, sigma), seconds) * 1e3

    progress("ClockFits of 600 pairs, checked")
    fits = codec.encode("ClockFits", clock_fits(600))
    native_s, general_s = alternately(lambda: decoded_by(avro, fits), lambda: decoded_by(None, fits), seconds)
    codec.use_readers(avro)
    figures["clock_fits_600_pairs_decode_ms"] = native_s * 1e3
    figures["clock_fits_600_pairs_vs_general"] = general_s / native_s
    return figures


def decoded_by(maker: ReaderMaker | None, message: bytes) -> ClockFits:
    """Decode and check a record by the readers of `maker` or, if None, by the general reader."""
    codec.use_readers(maker)
    return codec.decode(message, ClockFits)


def best(work: Callable[[], object], seconds: float) -> float:
    """Return the shortest time, s, that one call of `work` took, in repeated calls for `seconds`."""
    shortest, end = float("inf"), time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        work()
        now = time.perf_counter()
        shortest = min(shortest, now - begin)
        if now >= end:
            return shortest


def alternately(
    first: Callable[[], object], second: Callable[[], object], seconds: float
) -> tuple[float, float]:
    """Return the shortest time, s, of a call of each function; alternate, for the same conditions."""
    shortest = [float("inf"), float("inf")]
    end = time.perf_counter() + 2 * seconds
    while time.perf_counter() < end:
        shortest = [min(shortest[0], best(first, 0.02)), min(shortest[1], best(second, 0.02))]
    return shortest[0], shortest[1]


def peer_names() -> list[str]:
    """Return the names of the NICs that answer."""
    return [f"host-{peer + 1:04d}/eth0" for peer in range(PEERS)]


def batch_of(rng: np.random.Generator, number: int, samples: int, offsets: Any, drifts: Any) -> ProbeColumns:
    """Return the batch of one flush with about `samples` samples.

    `offsets` [PEERS] in ns and `drifts` [PEERS] in ppb are the peers' clocks against the prober's.
    """
    groups = PEERS * PATHS
    per = samples // groups // 2 * 2
    n = groups * per
    first = np.sort(rng.integers(0, FLUSH_NS, (groups, per // 2)), axis=1) + number * FLUSH_NS
    sent = np.stack([first, first + 20_000], -1).reshape(n)
    peer = np.repeat(np.arange(PEERS), PATHS * per)
    there, back = (
        5_000 + rng.exponential(500, n) + (rng.random(n) < 0.1) * rng.exponential(15_000, n) for _ in "12"
    )
    turnaround = rng.integers(8_000, 30_000, n)
    clock = offsets[peer] + drifts[peer] * 1e-9 * sent
    return ProbeColumns(
        NIC,
        7_046_029_254_386_353_131,
        number,
        T0_NS,
        T0_NS,
        [name for name in peer_names() for _ in range(PATHS)],
        np.tile(np.arange(PATHS) + 40_000, PEERS).astype(np.int32),
        np.full(groups, 20_000, np.int32),
        np.zeros(groups, np.int32),
        np.zeros(groups, np.int32),
        np.arange(groups + 1) * per,
        sent + T0_NS,
        np.round(there + clock).astype(np.int64),
        turnaround,
        np.round(back - clock).astype(np.int64),
    )


def window_of(batches: list[ProbeColumns]) -> NicWindow:
    """Return a window that holds `batches`."""
    window = NicWindow(NIC)
    for batch in batches:
        window.add(batch)
    return window


def by_fastavro(message: bytes) -> ProbeColumns:
    """Decode a message like the native decoder, but with fastavro and numpy."""
    body = io.BytesIO(message)
    body.seek(codec.HEADER_BYTES)
    record: Any = fastavro.schemaless_reader(body, codec.parsed_schema("ProbeBatch"), None)
    groups = record["samples"]
    sizes = [len(group["sent"]) for group in groups]
    sent, forward, turnaround, reverse = (
        np.concatenate([np.array(group[name], np.int64) for group in groups])
        for name in ("sent", "forward", "turnaround", "reverse")
    )
    start = np.concatenate([[0], np.cumsum(sizes)])
    sums = np.cumsum(sent)
    before = np.concatenate([[0], sums])[start[:-1]]
    path, spacing_ns, lost, no_t3 = (
        np.array([group[name] for group in groups], np.int32)
        for name in ("path", "spacing_ns", "lost", "no_t3")
    )
    return ProbeColumns(
        record["nic"],
        record["run"],
        record["batch"],
        record["clock_ns"],
        record["system_ns"],
        [group["peer"] for group in groups],
        path,
        spacing_ns,
        lost,
        no_t3,
        start,
        sums - np.repeat(before, sizes),
        forward,
        turnaround,
        reverse,
    )


def _same(one: ProbeColumns, other: ProbeColumns) -> bool:
    columns = ("start", "sent", "forward", "turnaround", "reverse", "path", "spacing_ns", "lost", "no_t3")
    return one.peers == other.peers and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in columns
    )


def clock_fits(pairs: int) -> dict[str, Any]:
    """Return a ClockFits record with `pairs` pairs."""
    head = codec.raw_schema("ClockFits")["fields"]
    record: dict[str, Any] = {
        field["name"]: {"string": "x", "int": 1, "long": 1}[field["type"]]
        for field in head
        if isinstance(field["type"], str)
    }
    pair = {
        "prober": NIC,
        "peer": "host-0001/eth0",
        "at_ns": T0_NS,
        "offset_ns": 3_000_000,
        "drift_ppb": 12.5,
        "sigma_ns": 8.0,
        "drift_sigma_ppb": 20.0,
        "rtt_min_ns": 1e4,
        "samples": 480,
        "accepted": 400,
    }
    return record | {"nics": [], "pairs": [pair] * pairs}
