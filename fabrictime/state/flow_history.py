"""Rate and round-trip time of flows over the last minutes, for hosts whose flows the policy acts on.

A thousand NICs report tens of thousands of flows per second, and most flows are never moved. Messages of
other hosts stay encoded for seconds, as a newly watched host's past. Times are log append times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from schemas.log_time import STEP_NS
from schemas.records import FlowReports

Links = tuple[str, ...]
Decode = Callable[[bytes], FlowReports]

RAW_NS: Final = 12_000_000_000
"""How long messages of unwatched hosts are kept, ns."""
RAW_BYTES: Final = 128 * 1024 * 1024
KEPT_NS: Final = 900_000_000_000
"""How long samples are kept, ns."""
MAX_SAMPLES: Final = 300_000
MAX_WATCHED: Final = 1_024
SIDE_NS: Final = 5_000_000_000
"""Length of each of the compared intervals before and after an action, ns."""
FOREVER_NS: Final = 1 << 62


class Sample(NamedTuple):
    """A flow's rate and round-trip time in the interval of one report."""

    start_ns: int
    end_ns: int
    rate_bps: float
    rtt_ns: int | None
    path: int
    limit_bps: int | None
    links: tuple[str, ...]


class Effect(NamedTuple):
    """A flow's mean rate and round-trip time before and after an action; None without a report."""

    before_bps: float | None = None
    after_bps: float | None = None
    before_rtt_ns: float | None = None
    after_rtt_ns: float | None = None
    left: tuple[str, ...] = ()
    """Links on the route before the action but not after it."""
    taken: tuple[str, ...] = ()
    """Links on the route after the action but not before it."""


NO_EFFECT: Final = Effect()


class FlowHistory:
    """Samples of the watched hosts' flows. `decode` returns a FlowReports record or raises ValueError."""

    def __init__(self, decode: Decode, raw_ns: int = RAW_NS) -> None:
        self._decode, self._raw_ns = decode, raw_ns
        self._kept_ns = max(KEPT_NS, raw_ns)
        self._raw: dict[str, deque[tuple[int, bytes]]] = {}
        self._raw_bytes = 0
        self._watched: dict[str, int] = {}
        """Host to the time at which its watch ends, ns."""
        self._samples: dict[str, deque[Sample]] = {}
        self._count = 0
        self._newest_ns = 0

    def take(self, host: str, value: bytes, append_ns: int) -> None:
        """Add one encoded FlowReports message of a host."""
        messages = self._raw.get(host)
        if messages and append_ns < messages[-1][0] - STEP_NS:
            self._step_back(host, append_ns)
        self._newest_ns = max(self._newest_ns, append_ns)
        raw = self._raw.pop(host, None) or deque()
        self._raw[host] = raw  # re-inserted, so that the dict is ordered by the last report
        raw.append((append_ns, value))
        self._raw_bytes += len(value)
        while raw[0][0] < append_ns - self._raw_ns:
            self._raw_bytes -= len(raw.popleft()[1])
        while self._raw_bytes > RAW_BYTES and len(self._raw) > 1:
            self._raw_bytes -= sum(len(value) for _, value in self._raw.pop(next(iter(self._raw))))
        until_ns = self._watched.get(host)
        if until_ns is None:
            return
        if append_ns > until_ns:
            del self._watched[host]
        else:
            self._add_samples(value, append_ns)

    def _step_back(self, host: str, append_ns: int) -> None:
        """Drop a host's messages and samples after `append_ns`, the time to which log time stepped back."""
        self._newest_ns = append_ns
        messages = self._raw[host]
        while messages and messages[-1][0] > append_ns:
            self._raw_bytes -= len(messages.pop()[1])
        for name in [name for name in self._samples if name.startswith(f"{host}/")]:
            samples = self._samples[name]
            while samples and samples[-1].end_ns > append_ns:
                samples.pop()
                self._count -= 1

    def watch(self, host: str, until_ns: int) -> None:
        """Store samples of a host's flows until `until_ns`, starting with its messages still in memory."""
        known_ns = self._watched.get(host)
        if known_ns is None:
            if until_ns < self._newest_ns or not self._has_capacity():
                return
            for append_ns, value in self._raw.get(host, ()):
                self._add_samples(value, append_ns)
        self._watched[host] = max(until_ns, known_ns or 0)

    def restart(self, host: str) -> None:
        """Drop a host's samples and watch the host without end. Call this before reading its older
        reports.
        """
        self._raw_bytes -= sum(len(value) for _, value in self._raw.pop(host, ()))
        for name in [name for name in self._samples if name.startswith(f"{host}/")]:
            self._count -= len(self._samples.pop(name))
        self._watched[host] = FOREVER_NS

    def _has_capacity(self) -> bool:
        """Return whether one more host can be watched. If all places are taken, first drop ended watches."""
        if len(self._watched) >= MAX_WATCHED:
            self._watched = {host: end for host, end in self._watched.items() if end >= self._newest_ns}
        return len(self._watched) < MAX_WATCHED

    def of(self, flow_id: str) -> list[Sample]:
        """Return a flow's samples, the oldest first."""
        return list(self._samples.get(flow_id, ()))

    def flows(self) -> list[str]:
        """Return the ids of the flows with samples."""
        return list(self._samples)

    def _add_samples(self, value: bytes, append_ns: int) -> None:
        try:
            record = self._decode(value)
        except ValueError:
            return  # counted by the flow cache
        for flow in record["flows"]:
            name, length_ns = flow["flow_id"], flow["interval_ns"]
            flow_samples = self._samples.pop(name, None) or deque()
            self._samples[name] = flow_samples
            if length_ns > 0 and (not flow_samples or append_ns > flow_samples[-1].end_ns):
                flow_samples.append(
                    Sample(
                        append_ns - length_ns,
                        append_ns,
                        flow["rate_bps"],
                        flow["rtt_ns"],
                        flow["source_port"],
                        flow["rate_limit_bps"],
                        tuple(flow["links"]),
                    )
                )
                self._count += 1
            while flow_samples and flow_samples[0].end_ns < append_ns - self._kept_ns:
                flow_samples.popleft()
                self._count -= 1
        while self._count > MAX_SAMPLES and len(self._samples) > 1:
            self._count -= len(self._samples.pop(next(iter(self._samples))))


def effect(
    samples: Sequence[Sample], at_ns: int, done_ns: int, min_ns: int = 0, max_ns: int = FOREVER_NS
) -> Effect:
    """Compare a flow in the `SIDE_NS` before a decision (`at_ns`) and after its execution (`done_ns`).

    A report counts only if it lies wholly before or wholly after the action, and within `min_ns` to `max_ns`.
    """
    begin, end = max(at_ns - SIDE_NS, min_ns), min(done_ns + SIDE_NS, max_ns)
    before = [sample for sample in samples if sample.end_ns <= at_ns and sample.end_ns > begin]
    after = [sample for sample in samples if sample.start_ns >= done_ns and sample.start_ns < end]
    left, taken = _changed_links(_links(before), _links(after))
    return Effect(_rate(before), _rate(after), _rtt(before), _rtt(after), left, taken)


def _links(samples: Sequence[Sample]) -> Links:
    return samples[-1].links if samples else ()


def _changed_links(before: Links, after: Links) -> tuple[Links, Links]:
    """Return the links that a flow left, and the links that it entered; both empty if a route is unknown."""
    if not before or not after:
        return (), ()
    left = dict.fromkeys(link for link in before if link not in after)
    return tuple(left), tuple(dict.fromkeys(link for link in after if link not in before))


def _rate(samples: Sequence[Sample]) -> float | None:
    length = sum(sample.end_ns - sample.start_ns for sample in samples)
    total = sum(sample.rate_bps * (sample.end_ns - sample.start_ns) for sample in samples)
    return total / length if length else None


def _rtt(samples: Sequence[Sample]) -> float | None:
    measured = [sample.rtt_ns for sample in samples if sample.rtt_ns is not None]
    return sum(measured) / len(measured) if measured else None
