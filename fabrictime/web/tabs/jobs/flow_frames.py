"""Frames and rows of a job's traffic: flows by delay, the matrix of NICs, links, queue pairs. Pure."""

from __future__ import annotations

import base64
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fabrictime.state.fabric_state import STATES, UP, FabricState
from fabrictime.state.labels import arrow, readable
from fabrictime.web.addresses import fabric_address
from schemas.ids import host_of, natural
from schemas.records import JobFlow
from schemas.units import bps_text, bytes_text, count_text, counted, delay_text

FLOWS_SHOWN: Final = 60
LINKS_SHOWN: Final = 60
PAIRS_SHOWN: Final = 100
MAX_SIDE: Final = 512
"""Largest number of NICs in the matrix; with more it shows hosts, at most this many, the busiest."""
LEVELS: Final = 254
SLOW: Final = 3
"""A delay of at least this many times the median is marked."""

Metric = Literal["rate", "probes", "data"]
METRICS: Final[dict[Metric, str]] = {"rate": "rate", "probes": "probe delay", "data": "data delay"}


class Pair(NamedTuple):
    """A directed pair of NICs: sender and receiver."""

    nic: str
    peer: str


def pair_id(nic: str, peer: str) -> str:
    """Return the id of a directed pair of NICs."""
    return f"{nic}>{peer}"


def value_of(flow: JobFlow, metric: Metric) -> float | None:
    """Return a flow's value of a metric; None if it is unknown."""
    if metric == "rate":
        return flow["rate_bps"]
    return flow["delay_ns"] if metric == "probes" else flow["data_ns"]


def merged(flows: Iterable[JobFlow], live: Iterable[JobFlow]) -> list[JobFlow]:
    """Return the flows of a diagnosis, with the rates and links that hosts report now. Flows that only hosts
    report are added.
    """
    flow_by_pair = {Pair(flow["nic"], flow["peer"]): flow for flow in flows}
    for live_flow in live:
        pair = Pair(live_flow["nic"], live_flow["peer"])
        diagnosed = flow_by_pair.get(pair)
        if diagnosed is None:
            flow_by_pair[pair] = live_flow
        else:
            merged_flow: JobFlow = {
                **diagnosed,
                "rate_bps": live_flow["rate_bps"],
                "paths": live_flow["paths"],
                "links": live_flow["links"] or diagnosed["links"],
            }
            flow_by_pair[pair] = merged_flow
    return list(flow_by_pair.values())


# --------------------------------------------------------------------------------------------------- flows


def flow_rows(flows: Sequence[JobFlow], nic: str | None) -> list[dict[str, Any]]:
    """Return a row for each flow of a NIC (None: of all NICs), ordered by the delay of its data, then by the
    delay of probes.
    """
    probe_medians = {
        count: _median((flow for flow in flows if len(flow["links"]) == count), "probes")
        for count in {len(flow["links"]) for flow in flows}
    }  # a path across spines takes longer than one within a leaf
    data_median = _median(flows, "data")
    nic_flows = [flow for flow in flows if nic in (None, flow["nic"], flow["peer"])]
    nic_flows.sort(key=lambda flow: (-(flow["data_ns"] or -1), -(flow["delay_ns"] or -1), -flow["rate_bps"]))
    return [
        {
            "id": pair_id(flow["nic"], flow["peer"]),
            "flow": f"{flow['nic']} → {flow['peer']}",
            "paths": count_text(flow["paths"]),
            "rate": bps_text(flow["rate_bps"]),
            "probes": delay_text(flow["delay_ns"]),
            "probes_slow": times(flow["delay_ns"], probe_medians[len(flow["links"])]),
            "data": delay_text(flow["data_ns"]),
            "data_slow": times(flow["data_ns"], data_median),
        }
        for flow in nic_flows[:FLOWS_SHOWN]
    ]


def _median(flows: Iterable[JobFlow], metric: Metric) -> float | None:
    values = [value for flow in flows if (value := value_of(flow, metric)) is not None]
    return statistics.median(values) if values else None


def times(value: float | None, median: float | None) -> str:
    """Return a delay as a multiple of the median, as text; empty if the delay is not far above the median."""
    if value is None or not median or value < SLOW * median:
        return ""
    return f"{value / median:.0f} times the median"


def flow_figures(flow: JobFlow) -> list[tuple[str, str]]:
    """Return a flow's delays, rate and other figures as names and texts."""
    return [
        ("rate", f"{bps_text(flow['rate_bps'])} on {counted(flow['paths'], 'flow')}"),
        ("delay of probes", f"{delay_text(flow['delay_ns'])}, median, one way"),
        ("delay of the data", f"{delay_text(flow['data_ns'])}, mean from post to completion"),
    ]


# -------------------------------------------------------------------------------------------------- matrix


@dataclass(frozen=True, slots=True)
class Matrix:
    """The drawn matrix: the names of its rows and columns, the frame for the browser, and whether the names
    are of hosts or of NICs.
    """

    names: list[str]
    frame: dict[str, Any]
    hosts: bool
    left_out: int


def matrix(flows: Sequence[JobFlow], metric: Metric, chosen_pair: str | None) -> Matrix:
    """Return the matrix of senders (rows) and receivers (columns).

    A cell's level is 0 without a flow, else 1 to 255 on a logarithmic scale from `low` to `high`. A cell with
    several flows has the sum of their rates, or the largest of their delays.
    """
    names = {name for flow in flows for name in (flow["nic"], flow["peer"])}
    hosts = len(names) > MAX_SIDE
    of: Callable[[str], str] = host_of if hosts else str
    ordered = sorted(_busiest(flows, of), key=natural)
    index = {name: k for k, name in enumerate(ordered)}
    side = len(ordered)
    levels, low, high = _levels(_values(flows, metric, index, of))
    nic, _, peer = (chosen_pair or "").partition(">")
    at = (index.get(of(nic), -1), index.get(of(peer), -1))
    frame = {
        "names": ordered,
        "groups": [host_of(name) for name in ordered],
        "levels": base64.b64encode(levels.tobytes()).decode("ascii"),
        "metric": metric,
        "low": low,
        "high": high,
        "chosen": list(at) if min(at) >= 0 else [],
    }
    return Matrix(ordered, frame, hosts, len({of(name) for name in names}) - side)


def _values(
    flows: Iterable[JobFlow], metric: Metric, index: Mapping[str, int], of: Callable[[str], str]
) -> NDArray[np.float64]:
    """Return the metric's value for each cell; 0 without a flow."""
    values = np.zeros((len(index), len(index)))
    for flow in flows:
        at, value = (index.get(of(flow["nic"]), -1), index.get(of(flow["peer"]), -1)), value_of(flow, metric)
        if min(at) >= 0 and value:
            values[at] = values[at] + value if metric == "rate" else max(values[at], value)
    return values


def _levels(values: NDArray[np.float64]) -> tuple[NDArray[np.uint8], float, float]:
    """Return the level of each cell, and the values of the lowest and of the highest level."""
    positive = values[values > 0]
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (1.0, 1.0)
    span = np.log(high / low) or 1.0
    with np.errstate(divide="ignore"):
        levels = np.where(values > 0, 1 + np.round(LEVELS * np.log(values / low) / span), 0)
    return levels.astype(np.uint8), low, high


def _busiest(flows: Iterable[JobFlow], of: Callable[[str], str]) -> list[str]:
    rates: dict[str, float] = {}
    for flow in flows:
        for name in (of(flow["nic"]), of(flow["peer"])):
            rates[name] = rates.get(name, 0.0) + flow["rate_bps"]
    return sorted(rates, key=lambda name: -rates[name])[:MAX_SIDE]


# --------------------------------------------------------------------------------------------------- links


def link_rows(
    state: FabricState, flows: Iterable[JobFlow], named: Iterable[str], now_ns: int
) -> list[dict[str, Any]]:
    """Return a row for each link that a job crosses: first the links that the verdict names, then the worst
    and the busiest links.

    The caller holds the state's lock.
    """
    marked = set(named)
    contended = {window["link"]: window for window in state.open_contention(now_ns)}
    rates: dict[str, float] = dict.fromkeys(marked, 0.0)
    for flow in flows:
        for link in flow["links"]:
            rates[link] = rates.get(link, 0.0) + flow["rate_bps"]
    ranked_rows = []
    for link, rate in rates.items():
        number = state.cable_graph.existing_number(link)
        worst = 0 if number is None else state.state(number)
        queue = None if number is None else state.queues.newest(number)
        wait_ns = None if queue is None else queue.delay_ns(queue.mean_bytes)
        window = contended.get(link)
        row = {
            "id": link,
            "link": arrow(link),
            "named": link in marked,
            "state": STATES[worst],
            "queue": delay_text(wait_ns),
            "contention": "" if window is None else readable(window["text"]),
            "rate": bps_text(rate),
        }
        trouble = worst if worst > UP else 0
        order = (link not in marked, -trouble, window is None, -(wait_ns or 0.0), -rate, link)
        ranked_rows.append((order, row))
    return [row for _, row in sorted(ranked_rows, key=lambda ranked: ranked[0])[:LINKS_SHOWN]]


def route_chips(
    state: FabricState, links: Iterable[str], job: str | None, now_ns: int
) -> list[tuple[str, str, str]]:
    """Return a chip for each link of a flow, with the link's trouble and its address on the Fabric tab.

    The caller holds the state's lock.
    """
    contended = {window["link"] for window in state.open_contention(now_ns)}
    chips = []
    for link in links:
        number = state.cable_graph.existing_number(link)
        worst = STATES[0 if number is None else state.state(number)]
        trouble = [str(worst)] if worst not in ("UP", "UNKNOWN") else []
        trouble += ["contended"] * (link in contended)
        text = arrow(link) + (f" ({', '.join(trouble)})" if trouble else "")
        chips.append((link, text, fabric_address(link=link, job=job)))
    return chips


# --------------------------------------------------------------------------------------------- queue pairs


def queue_pair_rows(pairs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table row for each queue pair, the slowest first. Each of `pairs` is a QueuePairDelay with
    `job` and `process`.
    """
    median = statistics.median([pair["mean_ns"] for pair in pairs]) if pairs else None
    ordered = sorted(pairs, key=lambda pair: -pair["p99_ns"])[:PAIRS_SHOWN]
    return [
        {
            "id": f"{pair['job']} {pair['process']} {pair['queue_pair']} {pair['peer']}",
            "queue_pair": str(pair["queue_pair"]),
            "peer": "—" if pair["peer"] < 0 else f"rank {pair['peer']}",
            "mean": delay_text(pair["mean_ns"]),
            "mean_slow": times(pair["mean_ns"], median),
            "p99": delay_text(pair["p99_ns"]),
            "max": delay_text(pair["max_ns"]),
            "chunks": count_text(pair["count"]) + (f", {pair['posted']} open" if pair["posted"] else ""),
            "bytes": bytes_text(pair["bytes"]),
            "job": pair["job"],
        }
        for pair in ordered
    ]


COUNTERS: Final = {
    "cnp_sent": "CNPs sent",
    "cnp_received": "CNPs received",
    "ce_received": "CE marks received",
    "retransmits": "retransmits",
    "out_of_sequence": "out of sequence",
    "pause_received": "pause frames received",
    "pause_sent": "pause frames sent",
}


def counters_text(counters: Mapping[str, int]) -> str:
    """Return the NIC's counters that grew, and their growth, as text."""
    grown = [f"{count_text(counters[key])} {name}" for key, name in COUNTERS.items() if counters.get(key)]
    if grown:
        return ", ".join(grown)
    return "its counters of congestion and loss did not grow" if counters else "no counters reported"
