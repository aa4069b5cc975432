"""Measures the traffic of a job between its NICs: in-band delays, flows, their links, delays of probes.

In-band delays come from queue pairs if known, else from transfers, else from point-to-point operations. Only
pairs on different hosts count: pairs on one host do not use the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from schemas.ids import host_of
from schemas.records import CollectiveFunction, Flow
from streams.diagnosis.job.arrivals import Floats, Ints
from streams.diagnosis.job.baseline import Baselines
from streams.diagnosis.job.columns import FUNCTIONS, Op, Pair, Rows, Transfer, hash_of, pair_key
from streams.diagnosis.job.ranks import Rank, Ranks
from streams.diagnosis.job.work import Work, mixed
from streams.diagnosis.network.view import Links, NetworkView

MAX_PAIRS: Final = 4_096
"""Largest number of pairs that are kept; they are the slowest ones."""
MAX_SIZES: Final = 4
"""Number of a pair's chunk sizes, as powers of two, whose times are compared with earlier ones."""
MIN_ALONE: Final = 0.2
"""Share of an operation after the last rank's arrival that is needed to show the network's time."""
MOSTLY_ALONE: Final = 0.9
"""Share above which the wait for late ranks is no longer than the jitter of arrivals."""
MAX_ALL_ROUTES: Final = 32
"""Largest number of NICs for which all routes among them count as possible links of a job with unknown
pairs."""
_SEND: Final = FUNCTIONS.index(CollectiveFunction.SEND)


@dataclass(slots=True)
class NicPair:
    """Traffic from one NIC to another, with its delays and flows."""

    nic: str
    peer: str
    source: str = ""
    """Source of `data_ns`: queue pair, transfer or operation; empty if none."""
    count: float = 0
    data_ns: float | None = None
    """Mean time from post to completion, or of moving data, ns."""
    min_ns: float | None = None
    bytes: float = 0.0
    sizes: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Maps binary logarithm of a chunk's bytes to the number of chunks and the sum of their times, ns."""
    gpu_late_share: float = 0.0
    """Share of the sender's time in transfers spent waiting for its GPU."""
    receive_gpu_share: float = 0.0
    """Share of the receiver's time in transfers spent waiting for its GPU, and flushing."""
    ranks: set[int] = field(default_factory=set)
    flows: list[Flow] = field(default_factory=list)
    queue_pairs: int = 0

    @property
    def rate_bps(self) -> float:
        """Total reported rate of the pair's flows, bit/s."""
        return sum(flow["rate_bps"] for flow in self.flows)

    @property
    def chunk_bytes(self) -> float:
        """Mean size of a chunk, transfer or operation, bytes."""
        return self.bytes / self.count if self.count else 0.0

    @property
    def key(self) -> tuple[str, str]:
        """Names of both NICs, the key of the pair in `Traffic.pairs`."""
        return self.nic, self.peer

    @property
    def name(self) -> str:
        """Text that names the pair's NICs."""
        return f"{self.nic} to {self.peer}"

    def note(self, baselines: Baselines) -> None:
        """Add the mean times of the pair's most frequent chunk sizes to the baselines."""
        for size, (count, total_ns) in self._frequent():
            baselines.note(("pair", self.nic, self.peer, self.source, size), total_ns / count)

    def baseline_ns(self, baselines: Baselines) -> float | None:
        """Return the mean time, ns, of the pair's messages if each size took its baseline time.

        None if no size has a baseline. A program sends messages of many sizes, in varying proportions.
        """
        counted = expected = measured = 0.0
        for size, (count, total_ns) in self._frequent():
            baseline = baselines.value(("pair", self.nic, self.peer, self.source, size))
            if baseline is not None:
                counted, expected, measured = (
                    counted + count,
                    expected + count * baseline,
                    measured + total_ns,
                )
        if not counted or self.data_ns is None:
            return None
        return self.data_ns * expected / measured if measured else expected / counted

    def _frequent(self) -> list[tuple[int, tuple[float, float]]]:
        return sorted(self.sizes.items(), key=lambda item: (-item[1][1], item[0]))[:MAX_SIZES]


def keys_of(pairs: Iterable[NicPair]) -> set[tuple[str, str]]:
    """Return the keys of pairs: their NICs."""
    return {pair.key for pair in pairs}


def nics_of(pairs: Iterable[NicPair]) -> list[str]:
    """Return the NICs of pairs, sorted."""
    return sorted({nic for pair in pairs for nic in pair.key})


LinkTable = dict[str, dict[tuple[str, str], NicPair]]


@dataclass
class Traffic:
    """All pairs of a job. `links`: by link, the pairs with a flow that certainly crosses the link."""

    pairs: dict[tuple[str, str], NicPair]
    nics: set[str]
    links: LinkTable = field(default_factory=dict)
    possible: LinkTable = field(default_factory=dict)
    """Links of the routes that flows without a known route may take, each with its pairs."""
    flows: dict[str, Flow] = field(default_factory=dict)
    routes: dict[str, Links] = field(default_factory=dict)
    """Maps flow to its links."""

    @cached_property
    def measured(self) -> list[NicPair]:
        """Pairs with an in-band delay, sorted by name."""
        return [self.pairs[key] for key in sorted(self.pairs) if self.pairs[key].data_ns is not None]

    def links_of(self, flows: Iterable[Flow]) -> list[str]:
        """Return the links that flows cross, in the order of their routes."""
        return list(dict.fromkeys(link for flow in flows for link in self.routes.get(flow["flow_id"], ())))

    def crossing(self, links: Iterable[str]) -> tuple[list[NicPair], bool]:
        """Return the pairs that cross any of the links, and whether they certainly do."""
        names = list(links)
        for table, certain in ((self.links, True), (self.possible, False)):
            pairs = {key: pair for link in names for key, pair in table.get(link, {}).items()}
            if pairs:
                return [pairs[key] for key in sorted(pairs)], certain
        return [], True


def traffic_of(
    ranks: Ranks, work: Work, transfers: Rows, queue_pairs: Rows, job: str, network: NetworkView
) -> Traffic:
    """Return the traffic of a job between its NICs in the interval that `work` covers."""
    nics = {nic for rank in ranks for nic in rank.nics}
    flows = {flow["flow_id"]: flow for flow in network.flows(nics, job)}
    nics |= {flow["nic"] for flow in flows.values()}
    traffic = Traffic({}, nics, flows=flows)
    _add_queue_pairs(traffic, ranks, queue_pairs)
    _add_transfers(traffic, ranks, work, transfers)
    _add_sends(traffic, ranks, work)
    for flow in flows.values():
        if flow["peer"] and host_of(flow["nic"]) != host_of(flow["peer"]):
            _pair(traffic, flow["nic"], flow["peer"]).flows.append(flow)
    _bound(traffic)
    _add_links(traffic, network)
    return traffic


# ------------------------------------------------------------------------------------------- sources


def _pair(traffic: Traffic, nic: str, peer: str) -> NicPair:
    pair = traffic.pairs.get((nic, peer))
    if pair is None:
        pair = traffic.pairs[nic, peer] = NicPair(nic, peer)
    return pair


def _size_of(amount: Rows) -> Ints:
    """Return each number of bytes as its rounded binary logarithm."""
    return np.rint(np.log2(np.maximum(amount, 1).astype(np.float64))).astype(np.int64)


def _add_queue_pairs(traffic: Traffic, ranks: Ranks, rows: Rows) -> None:
    """Add the in-band delays of queue pairs. The peer is taken from the flow, else from the peer rank."""
    rows = rows[rows[:, Pair.COUNT] > 0]
    if not len(rows):
        return
    names = {hash_of(nic): nic for nic in traffic.nics}
    flows = {hash_of(name): flow for name, flow in traffic.flows.items()}
    by_number = {rank.number: rank for rank in ranks}
    named = rows[:, (Pair.PROCESS, Pair.NIC, Pair.PEER, Pair.FLOW)]
    _, first, at = np.unique(mixed(*named.T), return_index=True, return_inverse=True)
    count, mean, size, shortest = rows[:, (Pair.COUNT, Pair.MEAN, Pair.BYTES, Pair.MIN)].T.astype(np.float64)
    smallest = np.full(len(first), np.inf)
    np.minimum.at(smallest, at, shortest)
    sums = (np.bincount(at, values).tolist() for values in (count, count * mean, size))
    for (process, name, number, flow_name), min_ns, *counted in zip(
        named[first].tolist(), smallest.tolist(), *sums, strict=True
    ):
        nic, flow, rank = names.get(name), flows.get(flow_name), by_number.get(number)
        peer = _peer_of(flow, rank, nic)
        if nic is None or not peer or host_of(nic) == host_of(peer):
            continue
        pair = _pair(traffic, nic, peer)
        pair.queue_pairs += 1
        pair.ranks |= {end.number for end in filter(None, (ranks.by_process.get(process), rank))}
        _add_mean(pair, "queue pair", *counted)
        pair.min_ns = min(pair.min_ns or np.inf, min_ns)


def _peer_of(flow: Flow | None, rank: Rank | None, nic: str | None) -> str:
    return flow["peer"] if flow is not None and flow["peer"] else _nic_for(rank, nic)


def _nic_for(rank: Rank | None, nic: str | None) -> str:
    """Return the rank's NIC with the device name of `nic`, else its first NIC; empty if unknown."""
    if rank is None or nic is None or not rank.nics:
        return ""
    device = nic.partition("/")[2]
    return next((candidate for candidate in rank.nics if candidate.partition("/")[2] == device), rank.nics[0])


def _add_mean(pair: NicPair, source: str, count: float, total_ns: float, amount: float) -> None:
    """Add a count of chunks of one size and their total time, unless the pair has data of a better source."""
    if pair.source not in ("", source):
        return
    size = round(math.log2(max(amount / max(count, 1.0), 1.0)))
    former_count, sum_ns = pair.sizes.get(size, (0.0, 0.0))
    pair.sizes[size] = former_count + count, sum_ns + total_ns
    before = (pair.data_ns or 0.0) * pair.count
    pair.source = source
    pair.count += count
    pair.bytes += amount
    pair.data_ns = (before + total_ns) / max(pair.count, 1.0)


def _add_transfers(traffic: Traffic, ranks: Ranks, work: Work, rows: Rows) -> None:
    """Add the transfers to their pairs: delays as the sender sees them, and GPU waits of both ends."""
    if not len(rows):
        return
    alone = _without_late_ranks(work, rows)
    ends = rows[:, (Transfer.PROCESS, Transfer.COMMUNICATOR, Transfer.PEER, Transfer.SENDS)]
    keys = mixed(mixed(*ends.T[:3]), ends[:, 3])
    _, first, at = np.unique(keys, return_index=True, return_inverse=True)

    def totals(*columns: Floats | Ints) -> Iterator[list[float]]:
        return (np.bincount(at, values.astype(np.float64), len(first)).tolist() for values in columns)

    done = rows[:, Transfer.END] > rows[:, Transfer.BEGIN]
    length = np.where(done, rows[:, Transfer.END] - rows[:, Transfer.BEGIN], 0)
    late, flush = np.maximum(rows[:, Transfer.GPU_LATE], 0) * alone, np.maximum(rows[:, Transfer.FLUSH], 0)
    pairs = [_pair_between(traffic, ranks, *end) for end in ends[first].tolist()]
    for pair, sends, length_ns, late_ns, flush_ns in zip(
        pairs, ends[first, 3].tolist(), *totals(length, late, flush), strict=True
    ):
        if pair is None:
            continue
        share = late_ns / max(length_ns, 1.0)
        if sends:
            pair.gpu_late_share = max(pair.gpu_late_share, min(1.0, share))
        else:
            share += flush_ns / max(length_ns, 1.0)
            pair.receive_gpu_share = max(pair.receive_gpu_share, min(1.0, share))
    measured = (rows[:, Transfer.SENDS] > 0) & (rows[:, Transfer.NETWORK_LATE] >= 0) & (alone >= MIN_ALONE)
    place = at[measured]
    rows, alone, keys = rows[measured], alone[measured], keys[measured]
    _, first, at = np.unique(mixed(keys, _size_of(rows[:, Transfer.BYTES])), True, True)
    sums = totals(np.ones(len(rows)), rows[:, Transfer.NETWORK_LATE] * alone, rows[:, Transfer.BYTES])
    for end, *counted in zip(place[first].tolist(), *sums, strict=True):
        pair = pairs[end]
        if pair is not None:
            _add_mean(pair, "transfer", *counted)


def _without_late_ranks(work: Work, rows: Rows) -> Floats:
    """Return, by transfer, the share of its operation in which all ranks had arrived; 1 if unknown.

    Before the last arrival, a sender waits for a receiver that has not arrived, as if the network were slow.
    """
    shares = np.ones(len(rows))
    if not len(work.rows):
        return shares
    moving = work.end - work.begin - np.maximum(work.rows[:, Op.LAUNCH], 0)
    share = 1.0 - np.clip(np.nan_to_num(work.arrival_wait) / np.maximum(moving, 1.0), 0.0, 1.0)
    names = mixed(*(work.rows[:, at] for at in (Op.PROCESS, Op.COMMUNICATOR)), pair_key(work.rows, Op))
    names = mixed(names, work.rows[:, Op.SEQ])
    targets = mixed(
        *(rows[:, at] for at in (Transfer.PROCESS, Transfer.COMMUNICATOR)), pair_key(rows, Transfer)
    )
    targets = mixed(targets, rows[:, Transfer.SEQ])
    share = np.where(share > MOSTLY_ALONE, 1.0, share)
    order = np.argsort(names)
    place = order[np.minimum(np.searchsorted(names[order], targets), len(names) - 1)]
    return np.where(names[place] == targets, share[place], shares)


def _pair_between(
    traffic: Traffic, ranks: Ranks, process: int, communicator: int, number: int, sends: int = 1
) -> NicPair | None:
    """Return the NIC pair, sender first, over which a process and a rank exchange data; None without one."""
    own, peer = ranks.by_process.get(process), ranks.of(communicator, number)
    if own is None or peer is None or own.host == peer.host or not own.nics or not peer.nics:
        return None
    sender, receiver = (own, peer) if sends else (peer, own)
    pair = _pair(traffic, sender.nic, _nic_for(receiver, sender.nic))
    pair.ranks |= {own.number, peer.number}
    return pair


def _add_sends(traffic: Traffic, ranks: Ranks, work: Work) -> None:
    """Add the delays of point-to-point operations to pairs without other delays."""
    sends = np.flatnonzero((work.rows[:, Op.FUNCTION] == _SEND) & ~work.running & ~np.isnan(work.network))
    if not len(sends):
        return
    rows = work.rows[sends]
    ends = rows[:, (Op.PROCESS, Op.COMMUNICATOR, Op.PEER)]
    keys = mixed(mixed(*ends.T), _size_of(rows[:, Op.BYTES]))
    _, first, at = np.unique(keys, return_index=True, return_inverse=True)
    columns = (np.ones(len(rows)), work.network[sends], rows[:, Op.BYTES])
    sums = (np.bincount(at, values * work.weight[sends]).tolist() for values in columns)
    for end, *counted in zip(ends[first].tolist(), *sums, strict=True):
        pair = _pair_between(traffic, ranks, *end)
        if pair is not None:
            _add_mean(pair, "operation", *counted)


def _bound(traffic: Traffic) -> None:
    """Drop all pairs but the `MAX_PAIRS` slowest."""
    if len(traffic.pairs) > MAX_PAIRS:
        slowest = sorted(traffic.pairs.items(), key=lambda item: (-(item[1].data_ns or 0.0), item[0]))
        traffic.pairs = dict(slowest[:MAX_PAIRS])


def _add_links(traffic: Traffic, network: NetworkView) -> None:
    """Add the links that the pairs' flows certainly cross, and those that they may cross."""
    for pair in traffic.pairs.values():
        unknown = not pair.flows
        for flow in pair.flows:
            links = network.links_of(flow)
            if links:
                traffic.routes[flow["flow_id"]] = links
                _add(traffic.links, links, pair)
            unknown = unknown or not links
        if unknown:
            for links in network.routes.of_pair(pair.nic, pair.peer):
                _add(traffic.possible, links, pair)
    if not traffic.pairs and len(traffic.nics) <= MAX_ALL_ROUTES:
        for nic in sorted(traffic.nics):
            for peer in sorted(traffic.nics - {nic}):
                for links in network.routes.of_pair(nic, peer):
                    _add(traffic.possible, links, NicPair(nic, peer))


def _add(table: LinkTable, links: Links, pair: NicPair) -> None:
    for link in links:
        table.setdefault(link, {})[pair.key] = pair
