"""The fabric's state as the browser draws it: the plan, how its links look, and one link in depth.

In: a `FabricState` (its lock held). Out: plain dicts and rows for fabric.js and the tab's tables. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fabrictime.state.cable_graph import Plan
from fabrictime.state.fabric_state import HOUR_NS, STATES, FabricState, Record
from fabrictime.state.labels import arrow
from fabrictime.state.queue_history import Depth
from fabrictime.state.units import bytes_text, delay_text, percent_text

LinkMetric = Literal["state", "queue", "load"]

ROWS = 12


@dataclass(frozen=True, slots=True)
class Drawn:
    """A plan and where its links stand in it: of cable k upwards 2 * k, downwards 2 * k + 1."""

    plan: Plan
    place: Mapping[int, int]


def drawn(plan: Plan) -> Drawn:
    """Return a plan with its links' places."""
    return Drawn(plan, {number: k for k, number in enumerate(plan.links)})


def plan_frame(plan: Plan, number: int) -> dict[str, Any]:
    """Return what is drawn, numbered so that later frames can name it."""
    return {
        "plan": number,
        "nodes": plan.nodes,
        "cables": plan.cables,
        "nics": plan.nics,
        "racks": plan.racks,
    }


def look_frame(state: FabricState, shown: Drawn, number: int) -> dict[str, Any]:
    """Return how the links of plan `number` look: states as digits, and the queues that are told.

    `queues` is four columns: place of the link, mean depth in bytes, its delay in ns, utilisation in
    thousandths or -1.
    """
    at: list[int] = []
    depth: list[int] = []
    wait: list[int] = []
    load: list[int] = []
    for link, told in state.queues.all_newest().items():
        place = shown.place.get(link)
        if place is None:
            continue
        at.append(place)
        depth.append(round(told.mean_bytes))
        wait.append(round(told.delay_ns(told.mean_bytes)))
        load.append(-1 if told.utilisation is None else round(1000 * told.utilisation))
    return {
        "of": number,
        "states": "".join(str(state.state(link)) for link in shown.plan.links),
        "nics": "".join(str(state.nic_state.get(nic[0], 0)) for nic in shown.plan.nics),
        "queues": [at, depth, wait, load],
    }


def choice_frame(
    shown: Drawn,
    number: int,
    link: str | None,
    node: str | None,
    lit: Iterable[int],
    numbers: Collection[int],
) -> dict[str, Any]:
    """Return what is chosen in plan `number`: a cable, a node, and the links that are lit."""
    places = [shown.place[each] for each in numbers if each in shown.place]
    return {
        "of": number,
        "cable": places[0] >> 1 if link is not None and places else -1,
        "node": node,
        "lit": [shown.place[each] for each in lit if each in shown.place],
    }


@dataclass(frozen=True, slots=True)
class Summary:
    """What every header says of the fabric."""

    cables: Mapping[str, int]
    nics: int
    hosts: int
    deepest: tuple[str, Depth] | None
    contention: list[Record]
    standing: list[Record]


def summary(state: FabricState, now_ns: int) -> Summary:
    """Return the header's figures."""
    found = max(
        state.queues.all_newest().items(), key=lambda each: each[1].delay_ns(each[1].mean_bytes), default=None
    )
    return Summary(
        state.counts(),
        len(state.nics),
        len({nic.host for nic in state.nics.values()}),
        None if found is None else (state.cable_graph.name(found[0]), found[1]),
        list(state.open_contention(now_ns)),
        state.standing(),
    )


def node_at(plan: Plan, place: int) -> str | None:
    """Return the name of a drawn node."""
    return plan.nodes[place][0] if 0 <= place < len(plan.nodes) else None


# ----------------------------------------------------------------------------------------------- one link


@dataclass(frozen=True, slots=True)
class Side:
    """One direction of a cable, as the tab shows it."""

    link: str
    state: str
    depth: str
    deepest: str
    load: str
    pairs: int


def side(state: FabricState, number: int) -> Side:
    """Return one direction's figures."""
    told = state.queues.newest(number)
    return Side(
        state.cable_graph.name(number),
        STATES[state.state(number)],
        "—" if told is None else depth_text(told, told.mean_bytes),
        "—" if told is None else depth_text(told, told.most_bytes),
        "—" if told is None else load_text(told),
        state.link_index.crossed(number),
    )


def depth_text(told: Depth, depth_bytes: float) -> str:
    """Return a depth with its bound and the delay that it means."""
    delay = delay_text(told.delay_ns(depth_bytes))
    if not told.rate_bps:
        return f"{delay} (link's rate not known)"
    return f"{bytes_text(depth_bytes)} ± {bytes_text(told.bound_bytes)}, {delay}"


def load_text(told: Depth) -> str:
    """Return a utilisation with its bound and where it is known from."""
    if told.utilisation is None:
        return "—"
    bound = "" if told.utilisation_bound is None else f" ± {percent_text(told.utilisation_bound)}"
    return f"{percent_text(told.utilisation)}{bound}, from {'flows' if told.from_flows else 'probes'}"


def hour_frame(state: FabricState, number: int, now_ns: int) -> dict[str, Any]:
    """Return a cable's past hour: (from, to, state) in ms, and when it went down.

    Before the first change that was heard of, the state is the one that this change began from.
    """
    least, now = (now_ns - HOUR_NS) // 1_000_000, now_ns // 1_000_000
    subject = state.subject_of(number)
    if subject is None:
        return {"id": state.cable_graph.cable(number), "from": least, "to": now, "states": [], "flaps": []}
    turns = [(turn.since_ns // 1_000_000, turn.state) for turn in subject.turns]
    first = STATES.index(subject.record["before"]) if subject.record["before"] in STATES else 0
    if len(turns) > 1:
        first = 1 if turns[0][1] != 1 else 0
    spans = [(least, first), *turns]
    states = [
        [max(begin, least), end, kind]
        for (begin, kind), end in zip(spans, [*(t[0] for t in turns), now], strict=True)
        if end > least and end > begin
    ]
    return {
        "id": state.cable_graph.cable(number),
        "from": least,
        "to": now,
        "states": states,
        "flaps": [each // 1_000_000 for each in subject.record["flap_ns"] if each // 1_000_000 >= least],
    }


def minute_frame(state: FabricState, number: int) -> dict[str, Any]:
    """Return both directions' last minute: times in ms, mean and greatest depth, utilisation."""
    ways = []
    for each in (number & ~1, number | 1):
        series = state.queues.series(each)
        ways.append(
            {
                "name": arrow(state.cable_graph.name(each)),
                "t": [at // 1_000_000 for at in series.at_ns],
                "mean": [round(v) for v in series.mean_bytes],
                "most": [round(v) for v in series.most_bytes],
                "load": [None if v is None else round(100 * v, 1) for v in series.utilisation],
            }
        )
    end = state.queues.newest_ns // 1_000_000
    return {"id": state.cable_graph.cable(number), "from": end - 60_000, "to": end, "ways": ways}


# ------------------------------------------------------------------------------------------------- lists


def worst_first(state: FabricState, shown: Drawn) -> list[dict[str, Any]]:
    """Return rows of the cables, NICs and hosts that are not UP, the worse first, then the newer."""
    rows = []
    for name, subject in state.subjects.items():
        record = subject.record
        if record["state"] in ("UP", "UNKNOWN"):
            continue
        rows.append((-STATES.index(record["state"]), -record["since_ns"], name, record))
    rows.sort(key=lambda row: row[:3])
    return [
        {"id": name, "what": arrow(name), "state": record["state"], "text": record["text"]}
        for _, _, name, record in rows
    ]


def deepest(state: FabricState, shown: Drawn, metric: LinkMetric) -> list[dict[str, Any]]:
    """Return rows of the links with the deepest queues, or the busiest ones where `metric` is load."""
    found = [
        (told.utilisation or 0.0 if metric == "load" else told.delay_ns(told.mean_bytes), number, told)
        for number, told in state.queues.all_newest().items()
        if number in shown.place
    ]
    found.sort(key=lambda row: (-row[0], row[1]))
    return [
        {
            "id": state.cable_graph.name(number),
            "what": arrow(state.cable_graph.name(number)),
            "depth": delay_text(told.delay_ns(told.mean_bytes))
            if not told.rate_bps
            else bytes_text(told.mean_bytes),
            "delay": delay_text(told.delay_ns(told.mean_bytes)),
            "load": "—" if told.utilisation is None else percent_text(told.utilisation),
        }
        for value, number, told in found[:ROWS]
        if value > 0
    ]


def of_node(state: FabricState, shown: Drawn, node: str) -> list[dict[str, Any]]:
    """Return rows of a node's cables, the worst first."""
    rows = []
    for k in range(len(shown.plan.cables)):
        low, low_port, high, high_port = shown.plan.cables[k]
        ends = (shown.plan.nodes[low][0], shown.plan.nodes[high][0])
        if node not in ends:
            continue
        links = shown.plan.links[2 * k : 2 * k + 2]
        worst = max(state.state(link) for link in links)
        out = links[0] if ends[0] == node else links[1]
        told = state.queues.newest(out)
        port, far = (
            (low_port, f"{ends[1]}:{high_port}") if ends[0] == node else (high_port, f"{ends[0]}:{low_port}")
        )
        rows.append(
            (
                -worst,
                0.0 if told is None else -told.mean_bytes,
                k,
                {
                    "id": state.cable_graph.name(out),
                    "port": port,
                    "far": far,
                    "state": STATES[worst],
                    "depth": "—" if told is None else bytes_text(told.mean_bytes),
                    "load": "—"
                    if told is None or told.utilisation is None
                    else percent_text(told.utilisation),
                },
            )
        )
    return [row[-1] for row in sorted(rows, key=lambda row: row[:3])]


def links_of_job(flows: Mapping[str, Record], job: str, state: FabricState) -> set[int]:
    """Return the links that a job's flows cross."""
    found = {
        state.cable_graph.known(hop) for flow in flows.values() if flow["job"] == job for hop in flow["links"]
    }
    return {number for number in found if number is not None}
