"""Evaluates rounds of traffic between hosts: slow hosts and links, uneven rates, latency under load. Pure.

Its input is the results that hosts published in each round. The client of a flow reports the figures, with
the flow as their subject: `host/device>host/device`, from client to server.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from schemas.audit_remedy import remedy
from schemas.ids import host_of
from schemas.records import AuditResult, AuditStatus
from schemas.units import number_text
from streams.audit.fabric.attribution import explain
from streams.audit.results import FLEET, Found, Scope, error, results_of, rule_of, warning
from streams.audit.traffic.isolation import Isolated, Measured, confirming, isolate

_PASSED, _FAILED, _UNKNOWN = AuditStatus.PASSED, AuditStatus.FAILED, AuditStatus.UNKNOWN
MIN_PAIRS: Final = 3
"""Number of pairs below which there is no variation and no usual latency."""
MAX_ALONE: Final = 16
"""Largest number of pairs that are measured again one by one: each takes some seconds."""
MIN_LINK_PAIRS: Final = 2
"""Number of slow flows that a link must explain."""
SHADES: Final = " ▁▂▃▄▅▆▇█"
"""Characters of the heat map's cells, from the median hop up to the limit and above."""
MAX_CELLS: Final = 400


@dataclass(frozen=True, slots=True)
class TrafficLimits:
    """Limits of the figures of traffic rounds, from the settings `audit.traffic`."""

    max_variation: float = 0.05
    max_slower: float = 0.1
    max_loaded_factor: float = 3.0
    max_loaded_growth_ms: float = 20.0
    min_across_share: float = 0.8
    straggler_ms: float = 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """A round: its hosts' order, and their results. `kind`: pairs, within, across, fan, ring or burn."""

    kind: str
    hosts: Sequence[str]
    results: Sequence[AuditResult] = ()


class FlowFigures(NamedTuple):
    """The figures of a flow in one round, by name of the fact."""

    kind: str
    number: int
    """Index of the flow's round."""
    client: str
    """The NIC of the flow's client."""
    server: str
    figures: Mapping[str, float]

    @property
    def name(self) -> str:
        """Text that names client and server."""
        return f"{self.client} and {self.server}"

    @property
    def ends(self) -> frozenset[str]:
        """The two NICs, regardless of direction."""
        return frozenset((self.client, self.server))

    @property
    def gbps(self) -> float:
        """The lower of the rates in both directions, Gbit/s."""
        return min(self.figures["send_gbps"], self.figures["receive_gbps"])


@dataclass(frozen=True)
class _Evaluation:
    rounds: Sequence[Round]
    flows: Sequence[FlowFigures]
    limits: TrafficLimits
    routes: Mapping[tuple[str, str], Sequence[str]]
    """Maps client and server NIC to the links between them, as far as traced."""
    nics: Mapping[str, Sequence[str]]
    """Maps host to its NICs."""
    rates: list[FlowFigures] = field(init=False)

    def __post_init__(self) -> None:
        rates = [flow for flow in self.flows if {"send_gbps", "receive_gbps"} <= flow.figures.keys()]
        object.__setattr__(self, "rates", rates)


def flows_of(rounds: Sequence[Round]) -> list[FlowFigures]:
    """Return the flows of all rounds, each with its measured figures by name."""
    figures_by_flow: dict[tuple[int, str], dict[str, float]] = {}
    for number, traffic_round in enumerate(rounds):
        for result in traffic_round.results:
            for fact in result["facts"]:
                if fact["number"] is not None and ">" in fact["subject"]:
                    figures_by_flow.setdefault((number, fact["subject"]), {})[fact["name"]] = fact["number"]
    return [
        FlowFigures(rounds[number].kind, number, *subject.partition(">")[::2], figures)
        for (number, subject), figures in figures_by_flow.items()
    ]


def _pairs(flows: Iterable[FlowFigures]) -> list[FlowFigures]:
    return [flow for flow in flows if flow.kind in ("pairs", "burn", "within", "across")]


def _isolated(work: _Evaluation) -> tuple[list[FlowFigures], Isolated | None]:
    """Return the flows of pairs, except across leaves, and the slow hosts and pairs among them, if any.

    Across the leaves of an oversubscribed fabric, flows are slower without any fault of a host.
    """
    flows = [flow for flow in _pairs(work.rates) if flow.kind != "across"]
    measured = [Measured(host_of(flow.client), host_of(flow.server), flow.gbps) for flow in flows]
    return flows, isolate(measured, work.limits.max_slower)


def confirming_rounds(rounds: Sequence[Round], limits: TrafficLimits) -> list[list[tuple[str, str]]]:
    """Return the pairs of further rounds, which decide about slow hosts, suspects and slow pairs.

    Each pair has its own round, so that its routes meet no other flow's: ECMP may put two flows on one link
    by chance. More than `MAX_ALONE` pairs share a round, which uses other ports. A host that these rounds
    clear may leave a slow pair of cleared hosts, so call this function again until no pairs are returned.
    """
    flows, isolated = _isolated(_Evaluation(rounds, flows_of(rounds), limits, {}, {}))
    if isolated is None:
        return []
    hosts = sorted({host_of(nic) for flow in flows for nic in (flow.client, flow.server)})
    slow = {(host_of(flows[at].client), host_of(flows[at].server)) for at in isolated.pairs}
    measured = {frozenset(traffic_round.hosts) for traffic_round in rounds if len(traffic_round.hosts) == 2}
    pairs = [
        pair for pair in (*confirming(isolated, hosts), *sorted(slow)) if frozenset(pair) not in measured
    ]
    if len(pairs) <= MAX_ALONE:
        return [[pair] for pair in pairs]
    together: dict[str, tuple[str, str]] = {}
    for pair in pairs:
        if not together.keys() & set(pair):
            together |= dict.fromkeys(pair, pair)
    return [list(dict.fromkeys(together.values()))]


def figures_line(rounds: Sequence[Round]) -> str:
    """Return one line with the median of each figure over all flows."""
    flows = flows_of(rounds)
    parts = []
    for name, text in (
        ("send_gbps", "{} Gbit/s there"),
        ("receive_gbps", "{} Gbit/s back"),
        ("idle_p99_us", "p99 of idle round trips {} us"),
        ("loaded_p99_us", "under load {} us"),
        ("hop_p90_ms", "p90 of hops {} ms"),
    ):
        values = [flow.figures[name] for flow in flows if name in flow.figures]
        if values:
            parts.append(text.format(number_text(float(np.median(values)))))
    return f"{len(rounds)} rounds, {len(flows)} flows; medians: {', '.join(parts) or 'none'}"


@error("fabric.traffic-hosts", "No host is slower with its partners than the others", 40, 50)
@remedy.isolate("Take the host out; compare its NIC, PCIe link, MTU and processor clock with the fleet")
def _slow_hosts(work: _Evaluation) -> Iterator[Found]:
    flows, isolated = _isolated(work)
    hosts = sorted({host_of(nic) for flow in flows for nic in (flow.client, flow.server)})
    if isolated is None:
        for host in hosts:
            yield Found(host, "", _UNKNOWN, f"{len(flows)} pairs, expected at least {MIN_PAIRS} to compare")
        return
    rates: dict[str, list[float]] = defaultdict(list)
    for flow in flows:
        for nic in (flow.client, flow.server):
            rates[host_of(nic)].append(flow.gbps)
    for host in hosts:
        text = f"at most {number_text(max(rates[host]))} Gbit/s with {len(rates[host])} partners"
        expected = (
            f"expected above {number_text(isolated.limit)}, the median is {number_text(isolated.median)}"
        )
        if host in isolated.slow:
            yield Found(host, "", _FAILED, f"{text}; {expected}")
        elif host in isolated.suspects:
            yield Found(host, "", _UNKNOWN, f"{text}, but no partner is known to be fast; {expected}")
        else:
            yield Found(host, "", _PASSED, text)


@error("fabric.traffic-links", "No link between hosts is slow", 40, 50)
@remedy.replace("Check speed, FEC and errors of the link at both ends; replace cable or transceiver")
def _slow_links(work: _Evaluation) -> Iterator[Found]:
    flows, isolated = _isolated(work)
    if isolated is None:
        return
    paths = [
        (*work.routes.get((flow.client, flow.server), ()), *work.routes.get((flow.server, flow.client), ()))
        for flow in flows
    ]
    explained = explain(paths, isolated.pairs, min_paths=MIN_LINK_PAIRS)
    fast = {flow.ends for at, flow in enumerate(flows) if at not in isolated.outliers}
    lasting = [at for at in explained.rest if flows[at].ends not in fast]
    for link, slow in explained.elements.items():
        text = (
            f"{len(slow)} of {explained.crossing[link]} flows over it are slow, such as {flows[slow[0]].name}"
        )
        yield Found(FLEET, link, _FAILED, text)
    for at in lasting:
        flow = flows[at]
        text = (
            f"{number_text(flow.gbps)} Gbit/s between {flow.name}, both faster with others; expected above "
        )
        text += f"{number_text(isolated.limit)}"
        yield Found(host_of(flow.client), flow.server, _FAILED, text)
    if not lasting and not explained.elements:
        once = len(isolated.pairs)
        text = f"no pair of fast hosts is slow each time, {len(flows)} flows"
        text += f"; {once} were slow beside others, as two flows on one link are (ECMP)" if once else ""
        yield Found(FLEET, "", _PASSED, text)


@warning("fabric.traffic-variation", "Pairs of a round have the same rate", 40)
@remedy.monitor("Run more passes to isolate the slow host; check ECMP and that the fabric is idle")
def _variation(work: _Evaluation) -> Iterator[Found]:
    """Yield findings on the standard deviation of each round's rates as a share of their mean."""
    by_round: dict[int, list[float]] = defaultdict(list)
    for flow in work.rates:
        by_round[flow.number].append(flow.gbps)
    for number, traffic_round in enumerate(work.rounds):
        rates = by_round[number]
        if traffic_round.kind not in ("pairs", "fan", "burn") or len(rates) < MIN_PAIRS:
            continue
        mean, allowed = float(np.mean(rates)), work.limits.max_variation
        variation = float(np.std(rates)) / mean if mean else math.inf
        rate = f"{number_text(mean)} Gbit/s"
        text = f"round {number + 1}: {variation:.1%} of {rate}, expected at most {allowed:.1%}"
        yield Found(FLEET, f"round {number + 1}", _PASSED if variation <= allowed else _FAILED, text)


@warning("fabric.loaded-latency", "Round trips under load are as on other pairs", 41)
@remedy.monitor("Check PFC, ECN and queue limits of the switch ports on the way, and the NIC's DSCP")
def _latency(work: _Evaluation) -> Iterator[Found]:
    """Yield findings on round trips under load, compared with the flow's idle ones and the fleet's median."""
    flows = [flow for flow in work.flows if {"idle_p99_us", "loaded_p99_us"} <= flow.figures.keys()]
    if not flows:
        return
    median = float(np.median([flow.figures["loaded_p99_us"] for flow in flows]))
    limits = work.limits
    for flow in flows:
        idle, loaded = flow.figures["idle_p99_us"], flow.figures["loaded_p99_us"]
        is_far = len(flows) >= MIN_PAIRS and loaded > limits.max_loaded_factor * median
        is_grown = loaded - idle > limits.max_loaded_growth_ms * 1e3
        text = (
            f"p99 {loaded:,.0f} us under load, {idle:,.0f} idle, median {median:,.0f}; expected at most "
            f"{limits.max_loaded_factor:g} times the median and {limits.max_loaded_growth_ms:g} ms above idle"
        )
        status = _FAILED if is_far or is_grown else _PASSED
        yield Found(host_of(flow.client), f"{flow.client}>{flow.server}", status, text)


@warning("fabric.burned-links", "Every NIC's link carried load in both directions", 42)
@remedy.monitor(
    "Run the pattern again with this host; `fabrictime audit --fleet` shows whether the NIC is up"
)
def _burned(work: _Evaluation) -> Iterator[Found]:
    """Yield a finding for each NIC of hosts in the pattern `burn`, by whether it carried load."""
    hosts = {
        host for traffic_round in work.rounds if traffic_round.kind == "burn" for host in traffic_round.hosts
    }
    carried: dict[str, float] = defaultdict(float)
    for flow in work.flows:
        for nic in (flow.client, flow.server):
            carried[nic] += flow.figures.get("burned_mb", 0.0)
    for host in sorted(hosts):
        for nic in work.nics.get(host, ()):
            text = f"{carried[nic]:,.1f} MB in each direction"
            yield Found(
                host,
                nic,
                _PASSED if carried[nic] else _FAILED,
                text if carried[nic] else f"{text}, expected load",
            )


@error("fabric.bisection", "Pairs across leaves are nearly as fast as pairs within them", 51)
@remedy.monitor("Check the leaves' uplinks: ECMP, oversubscription; `fabrictime links` names dead ones")
def _bisection(work: _Evaluation) -> Iterator[Found]:
    """Yield a finding that compares the median rate of pairs within leaves with that across leaves."""
    if not any(traffic_round.kind in ("within", "across") for traffic_round in work.rounds):
        return
    rates = {kind: [flow.gbps for flow in work.rates if flow.kind == kind] for kind in ("within", "across")}
    if not all(rates.values()):
        missing = next(kind for kind, kind_rates in rates.items() if not kind_rates)
        yield Found(FLEET, "", _UNKNOWN, f"no pair {missing} leaves was measured, expected at least one")
        return
    within, across = (float(np.median(rates[kind])) for kind in ("within", "across"))
    share = across / within if within else 0.0
    text = (
        f"{number_text(across)} Gbit/s across leaves ({len(rates['across'])} pairs), "
        f"{number_text(within)} within ({len(rates['within'])}): {share:.0%}, "
        f"expected at least {work.limits.min_across_share:.0%}"
    )
    yield Found(FLEET, "", _PASSED if share >= work.limits.min_across_share else _FAILED, text)


def _hops(work: _Evaluation) -> list[FlowFigures]:
    return [flow for flow in work.flows if "hop_p90_ms" in flow.figures]


@error("fabric.stragglers", "No host delays a ring of sends and receives", 52)
@remedy.isolate("Take the host out; check its load, interrupts, governor and NIC")
def _stragglers(work: _Evaluation) -> Iterator[Found]:
    """Yield a finding per host, FAILED if all its hops in all rings are long, and a heat map per ring."""
    hops, limit = _hops(work), work.limits.straggler_ms
    measured = [Measured(host_of(hop.client), host_of(hop.server), hop.figures["hop_p90_ms"]) for hop in hops]
    isolated = isolate(measured, 0.0, high_is_slow=True, limit=limit)
    if isolated is None:
        return
    longest: dict[str, float] = defaultdict(float)
    for hop in measured:
        for host in (hop.a, hop.b):
            longest[host] = max(longest[host], hop.value)
    for host in sorted(longest):
        text = f"its hops take up to {longest[host]:.2f} ms, expected below {limit:g}"
        status = _FAILED if host in isolated.slow else _UNKNOWN if host in isolated.suspects else _PASSED
        yield Found(host, "", status, text)
    for number, cells in heat_map(work.rounds, hops, isolated.median, limit):
        yield Found(FLEET, f"heat map of ring {number + 1}", _PASSED, cells)


def heat_map(
    rounds: Sequence[Round], hops: Sequence[FlowFigures], median_ms: float, limit_ms: float
) -> Iterator[tuple[int, str]]:
    """Yield (index of the round, line) for each ring: a cell for the hop to each host, in ring order.

    A full cell is a hop at or above the limit, a low cell is a hop at the median; `?` was not measured.
    """
    for number, traffic_round in enumerate(rounds):
        if traffic_round.kind != "ring":
            continue
        to = {host_of(hop.server): hop.figures["hop_p90_ms"] for hop in hops if hop.number == number}
        cells = "".join(_cell(to.get(host), median_ms, limit_ms) for host in traffic_round.hosts[:MAX_CELLS])
        yield number, f"to {traffic_round.hosts[0]} … {traffic_round.hosts[-1]}: |{cells}|"


def _cell(value: float | None, median: float, limit: float) -> str:
    if value is None:
        return "?"
    share = 1.0 if value >= limit else max(0.0, (value - median) / max(limit - median, 1e-9))
    return SHADES[1 + int(share * (len(SHADES) - 2))]


_FINDERS: Final = (_slow_hosts, _slow_links, _variation, _latency, _burned, _bisection, _stragglers)
TRAFFIC_RULES: Final = tuple(map(rule_of, _FINDERS))
"""All rules of traffic, in the order of the report."""


def traffic_results(
    rounds: Sequence[Round],
    scope: Scope,
    limits: TrafficLimits,
    routes: Mapping[tuple[str, str], Sequence[str]],
    nics: Mapping[str, Sequence[str]],
) -> list[AuditResult]:
    """Return the results of all rules for which the rounds have figures.

    `routes`: links between a client NIC and a server NIC, by both; `nics`: a host's NICs, by host.
    """
    work = _Evaluation(rounds, flows_of(rounds), limits, routes, nics)
    return [result for find in _FINDERS for result in results_of(rule_of(find), find(work), scope)]
