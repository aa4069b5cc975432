"""Finds hosts, NICs, links, switches, racks, jobs, flows and alerts by a part of their names.

The names of a kind are one text, which `str.find` scans, so that a query handles only matching objects. Each
kind is indexed again only after a change of its records.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fabrictime.state.action_text import flow_text
from fabrictime.state.alert_now import text_now
from fabrictime.state.cable_graph import ends_of
from fabrictime.state.fabric_state import STATES, FabricState, Part, is_cleared
from fabrictime.state.labels import arrow, readable, verdict_label
from schemas.ids import natural
from schemas.units import bps_text, counted

Kind = Literal["host", "NIC", "switch", "rack", "link", "job", "flow", "alert"]

KIND_LIMIT: Final = 6
"""Number of results of one kind."""
MIN_REBUILD_S: Final = 2.0
"""Shortest time between two indexings of one kind, s: flows are reported each second."""
MAX_FLOWS: Final = 50_000
MAX_QUERY: Final = 200
_ARROWS: Final = ("<>", "->", "→", "⇄")

Rank = Literal[0, 1, 2]
"""0: the whole name matches, 1: its beginning, 2: another part."""


@dataclass(frozen=True, slots=True)
class Result:
    """An object that matches a query. `key` identifies the object in its tab."""

    kind: Kind
    key: str
    name: str
    detail: str


class Names:
    """The names of the objects of one kind. An object may have several names."""

    def __init__(self, keys: Sequence[str], aliases: Callable[[str], Iterable[str]]) -> None:
        """Index the objects `keys`, in this order, under the names that `aliases` returns for each."""
        self.keys = list(keys)
        lines: list[str] = []
        self._objects: list[int] = []
        for number, key in enumerate(self.keys):
            for alias in aliases(key):
                lines.append(alias.lower().replace("\n", " "))
                self._objects.append(number)
        self.text = "\n".join(("", *lines, ""))
        self._starts = [1]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def find(self, query: str, limit: int) -> dict[str, int]:
        """Return the rank of each matching object, the best match first, and at most `limit` of them."""
        ranks: dict[int, int] = {}
        for rank, pattern in enumerate((f"\n{query}\n", f"\n{query}", query)):
            at = self.text.find(pattern)
            while at >= 0 and len(ranks) < limit:
                line = bisect_right(self._starts, at + (rank < 2)) - 1
                ranks.setdefault(self._objects[line], rank)
                at = self.text.find(pattern, self._starts[line + 1] - (rank < 2))
        return {self.keys[number]: rank for number, rank in ranks.items()}


def normalised(query: str) -> str:
    """Return a query in the form of the indexed names: lower case, `>` for each arrow, no outer spaces."""
    text = query[:MAX_QUERY].lower().strip().replace("\n", " ")
    for mark in _ARROWS:
        text = text.replace(mark, ">")
    return ">".join(part.strip() for part in text.split(">")) if ">" in text else " ".join(text.split())


class SearchIndex:
    """Finds the objects of a fabric's state by a part of their names."""

    def __init__(self, state: FabricState, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._monotonic_s = monotonic_s
        self._indexed: dict[Kind, tuple[int, float, Names]] = {}
        self.rebuilds = 0
        """Number of indexings of one kind so far."""

    def find(self, query: str) -> list[Result]:
        """Return the matching objects kind by kind; the kind with the best match comes first."""
        text = normalised(query)
        if not text:
            return []
        with self._state.lock:
            matches = {kind: self._names(kind).find(text, KIND_LIMIT) for kind in _KINDS}
            ranked = sorted(
                (kind for kind in _KINDS if matches[kind]), key=lambda kind: min(matches[kind].values())
            )
            return [self._result(kind, key) for kind in ranked for key in matches[kind]]

    def _names(self, kind: Kind) -> Names:
        part, keys_of, aliases, _ = _KINDS[kind]
        version, now_s = self._state.versions[part], self._monotonic_s()
        indexed = self._indexed.get(kind)
        if indexed is not None and (indexed[0] == version or now_s < indexed[1] + MIN_REBUILD_S):
            return indexed[2]
        self.rebuilds += 1
        state = self._state
        names = Names(keys_of(state), lambda key: aliases(state, key))
        self._indexed[kind] = version, now_s, names
        return names

    def _result(self, kind: Kind, key: str) -> Result:
        name, detail = _KINDS[kind][3](self._state, key)
        return Result(kind, key, name, detail)


# ------------------------------------------------------------------------------------------------- kinds


def _nics(state: FabricState) -> list[str]:
    return sorted(state.nics, key=natural)


def _nic_texts(state: FabricState, key: str) -> tuple[str, str]:
    nic = state.nics.get(key)
    if nic is None:
        return key, ""
    rack = f"rack {nic.rack}" if nic.rack else ""
    return key, ", ".join(filter(None, (rack, bps_text(nic.speed_bps) if nic.speed_bps else "")))


def _hosts(state: FabricState) -> list[str]:
    return sorted({nic.host for nic in state.nics.values()}, key=natural)


def _host_texts(state: FabricState, key: str) -> tuple[str, str]:
    return key, counted(sum(nic.host == key for nic in state.nics.values()), "NIC")


def _switches(state: FabricState) -> list[str]:
    hosts = {nic.host for nic in state.nics.values()}
    return [name for name, _ in state.plan().nodes if name not in hosts]


def _racks(state: FabricState) -> list[str]:
    return sorted({nic.rack for nic in state.nics.values() if nic.rack}, key=natural)


def _rack_texts(state: FabricState, key: str) -> tuple[str, str]:
    return key, counted(sum(nic.rack == key for nic in state.nics.values()), "NIC")


def _links(state: FabricState) -> list[str]:
    return [state.cable_graph.name(number) for number in state.plan().links[::2]]


def _link_aliases(_: FabricState, key: str) -> list[str]:
    ends = ends_of(key)
    near, _mark, far = key.partition(">")
    if ends is None:
        return [key]
    low, high = ends[0].node, ends[1].node
    return [f"{near}>{far}", f"{far}>{near}", f"{low}>{high}", f"{high}>{low}"]


def _link_texts(state: FabricState, key: str) -> tuple[str, str]:
    number = state.cable_graph.existing_number(key)
    name = arrow(key.replace(">", "<>"))
    return name, "" if number is None else STATES[max(state.state(number), state.state(number ^ 1))]


def _jobs(state: FabricState) -> list[str]:
    return sorted(state.jobs.jobs, key=natural)


def _job_texts(state: FabricState, key: str) -> tuple[str, str]:
    job = state.jobs.jobs.get(key)
    return key, "" if job is None else verdict_label(job.head["verdict"])


def _flows(state: FabricState) -> list[str]:
    return list(state.flows.flows())[:MAX_FLOWS]


def _flow_aliases(state: FabricState, key: str) -> list[str]:
    flow = state.flows.flows().get(key)
    names = [key, flow_text(key)]
    return names if flow is None else [*names, f"{flow['nic']}>{flow['peer']}"]


def _flow_texts(state: FabricState, key: str) -> tuple[str, str]:
    flow = state.flows.flows().get(key)
    if flow is None:
        return flow_text(key), "closed"
    job = f", job {flow['job']}" if flow["job"] else ""
    return flow_text(
        key
    ), f"{arrow(flow['nic'] + '>' + str(flow['peer']))}, {bps_text(flow['rate_bps'])}{job}"


def _alerts(state: FabricState) -> list[str]:
    return sorted(
        state.alerts, key=lambda key: (is_cleared(state.alerts[key]), -state.alerts[key]["raised_ns"])
    )


def _alert_aliases(state: FabricState, key: str) -> list[str]:
    alert = state.alerts[key]
    return [
        alert["kind"].replace("_", " "),
        alert["text"],
        alert["subject"].replace("<>", ">"),
        *alert["jobs"],
    ]


def _alert_texts(state: FabricState, key: str) -> tuple[str, str]:
    alert = state.alerts.get(key)
    if alert is None:
        return key, ""
    text = readable(text_now(state, alert))
    return text, "cleared" if is_cleared(alert) else f"{alert['severity']}, active"


def _itself(_: FabricState, key: str) -> list[str]:
    return [key]


_KindIndex = tuple[
    Part,
    Callable[[FabricState], list[str]],
    Callable[[FabricState, str], Iterable[str]],
    Callable[[FabricState, str], tuple[str, str]],
]
"""Part with the records, function that lists the keys, and functions of a key: its names, (name, detail)."""
_KINDS: Final[Mapping[Kind, _KindIndex]] = {
    "host": ("plan", _hosts, _itself, _host_texts),
    "NIC": ("plan", _nics, _itself, _nic_texts),
    "switch": ("plan", _switches, _itself, lambda _, key: (key, "")),
    "rack": ("plan", _racks, _itself, _rack_texts),
    "job": ("jobs", _jobs, _itself, _job_texts),
    "link": ("plan", _links, _link_aliases, _link_texts),
    "alert": ("alerts", _alerts, _alert_aliases, _alert_texts),
    "flow": ("flows", _flows, _flow_aliases, _flow_texts),
}
