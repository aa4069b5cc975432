"""Frames of the drawn fabric and tables of the Fabric tab. Callers hold the state's lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from actuators.notify.runbooks import title_of
from fabrictime.state.cable_graph import Plan
from fabrictime.state.fabric_state import HOUR_NS, STATES, UP, FabricState
from fabrictime.state.labels import aliased_text, arrow, readable
from fabrictime.state.queue_history import QueueDepth
from schemas.ids import natural
from schemas.records import Alert, AlertKind, ContentionWindow, Flow, HealthKind, LinkHealth, LinkState
from schemas.units import bytes_text, delay_text, percent_text

LinkMetric = Literal["state", "queue", "load"]

OF_SHARD: Final = {
    HealthKind.PATHS: AlertKind.UNEXPLAINED_LOSS,
    HealthKind.TRACES: AlertKind.TRACING_BLIND,
    HealthKind.CLASSES: AlertKind.CLASS_REWRITTEN,
}
"""Maps the kind of a health record about a whole shard to that of its alert."""
DEEPEST_SHOWN: Final = 12
MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class DrawnPlan:
    """A plan, and the index of each link number: 2 * k for the uplink of cable k, 2 * k + 1 for its
    downlink.
    """

    plan: Plan
    index: Mapping[int, int]


def draw_plan(plan: Plan) -> DrawnPlan:
    """Return a plan with an index of its links by link number."""
    return DrawnPlan(plan, {number: k for k, number in enumerate(plan.links)})


def plan_frame(plan: Plan, number: int) -> dict[str, Any]:
    """Return the plan's frame for the browser. Later frames refer to the plan by `number`."""
    return {
        "plan": number,
        "nodes": plan.nodes,
        "cables": plan.cables,
        "nics": plan.nics,
        "racks": plan.racks,
    }


def links_frame(state: FabricState, drawn: DrawnPlan, number: int) -> dict[str, Any]:
    """Return the frame of the links of plan `number`: states, one digit each, and inferred queues.

    `queues` has four columns: index of the link, mean depth in bytes, its delay in ns, and utilisation in
    thousandths, -1 if unknown.
    """
    index: list[int] = []
    depth: list[int] = []
    wait: list[int] = []
    load: list[int] = []
    for link, queue in state.queues.all_newest().items():
        k = drawn.index.get(link)
        if k is None:
            continue
        index.append(k)
        depth.append(round(queue.mean_bytes))
        wait.append(round(queue.delay_ns(queue.mean_bytes)))
        load.append(-1 if queue.utilisation is None else round(1000 * queue.utilisation))
    return {
        "of": number,
        "states": "".join(str(state.state(link)) for link in drawn.plan.links),
        "nics": "".join(str(state.nic_state.get(nic[0], 0)) for nic in drawn.plan.nics),
        "queues": [index, depth, wait, load],
    }


def choice_frame(
    drawn: DrawnPlan,
    number: int,
    link: str | None,
    node: str | None,
    lit: Iterable[int],
    numbers: Collection[int],
) -> dict[str, Any]:
    """Return the frame of the chosen cable and node and of the highlighted links, in plan `number`."""
    drawn_numbers = [drawn.index[drawn_number] for drawn_number in numbers if drawn_number in drawn.index]
    return {
        "of": number,
        "cable": drawn_numbers[0] >> 1 if link is not None and drawn_numbers else -1,
        "node": node,
        "lit": [drawn.index[lit_number] for lit_number in lit if lit_number in drawn.index],
    }


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures in the header of every live tab: cables, hosts, deepest queue, contention and alerts."""

    cables: Mapping[LinkState, int]
    nics: int
    hosts: int
    deepest: tuple[str, QueueDepth] | None
    contention: list[ContentionWindow]
    active_alerts: list[Alert]
    fold: int = 1
    """How many slots of queues are combined into one."""


def summary(state: FabricState, now_ns: int) -> Summary:
    """Return the figures in the header of live tabs."""
    deepest = max(
        state.queues.all_newest().items(), key=lambda item: item[1].delay_ns(item[1].mean_bytes), default=None
    )
    return Summary(
        state.cable_counts(),
        len(state.nics),
        len({nic.host for nic in state.nics.values()}),
        None if deepest is None else (state.cable_graph.name(deepest[0]), deepest[1]),
        list(state.open_contention(now_ns)),
        state.active_alerts(),
        state.queues.fold,
    )


def node_at(plan: Plan, k: int) -> str | None:
    """Return the name of node `k` of a plan; None if there is no such node."""
    return plan.nodes[k][0] if 0 <= k < len(plan.nodes) else None


# ----------------------------------------------------------------------------------------------- one link


@dataclass(frozen=True, slots=True)
class DirectionFigures:
    """State, queue depth and load of one direction of a cable as texts, and its number of pairs."""

    link: str
    state: str
    depth: str
    deepest: str
    load: str
    pairs: int


def direction_figures(state: FabricState, number: int) -> DirectionFigures:
    """Return state, queue depth and load of link `number` as texts, and its number of pairs."""
    queue = state.queues.newest(number)
    return DirectionFigures(
        state.cable_graph.name(number),
        STATES[state.state(number)],
        "—" if queue is None else depth_text(queue, queue.mean_bytes),
        "—" if queue is None else depth_text(queue, queue.max_bytes),
        "—" if queue is None else load_text(queue),
        state.link_index.pair_count(number),
    )


def depth_text(queue: QueueDepth, depth_bytes: float) -> str:
    """Return a queue depth as text, with its error bound and its delay."""
    delay = delay_text(queue.delay_ns(depth_bytes))
    if not queue.rate_bps:
        return f"{delay} (link rate unknown)"
    return f"{bytes_text(depth_bytes)} ± {bytes_text(queue.bound_bytes)}, {delay}"


def load_text(queue: QueueDepth) -> str:
    """Return the utilisation of a link as text, with its error bound and its source."""
    if queue.utilisation is None:
        return "—"
    bound = "" if queue.utilisation_bound is None else f" ± {percent_text(queue.utilisation_bound)}"
    return f"{percent_text(queue.utilisation)}{bound}, from {'flows' if queue.from_flows else 'probes'}"


def hour_frame(state: FabricState, number: int, now_ns: int) -> dict[str, Any]:
    """Return the past hour of a link's cable: spans [from, to, state] in ms, and the times at which the cable
    went down.

    Before the first known change, the cable has the state from which this change started.
    """
    begin_ms, now_ms = (now_ns - HOUR_NS) // 1_000_000, now_ns // 1_000_000
    cable = state.cable_graph.cable(number)
    subject = state.subject_of(number)
    if subject is None:
        return {"id": cable, "from": begin_ms, "to": now_ms, "states": [], "flaps": []}
    changes = [(change.since_ns // 1_000_000, change.state) for change in subject.changes]
    first = STATES.index(subject.record["before"]) if subject.record["before"] in STATES else 0
    if len(changes) > 1:
        first = UP if changes[0][1] != UP else 0
    starts = [(begin_ms, first), *changes]
    ends = [*(at for at, _ in changes), now_ms]
    states = [
        [max(start, begin_ms), end, kind]
        for (start, kind), end in zip(starts, ends, strict=True)
        if end > begin_ms and end > start
    ]
    flaps = [at_ns // 1_000_000 for at_ns in subject.record["flap_ns"]]
    return {
        "id": cable,
        "from": begin_ms,
        "to": now_ms,
        "states": states,
        "flaps": [at for at in flaps if at >= begin_ms],
    }


def minute_frame(state: FabricState, number: int) -> dict[str, Any]:
    """Return the frame of the last minute of a cable's directions: times in ms, mean and largest queue depth,
    utilisation in per cent.
    """
    directions = []
    for direction in (number & ~1, number | 1):
        series = state.queues.series(direction)
        directions.append(
            {
                "name": arrow(state.cable_graph.name(direction)),
                "t": [at // 1_000_000 for at in series.at_ns],
                "mean": [round(v) for v in series.mean_bytes],
                "max": [round(v) for v in series.max_bytes],
                "load": [None if v is None else round(100 * v, 1) for v in series.utilisation],
            }
        )
    end = state.queues.newest_ns // 1_000_000
    cable = state.cable_graph.cable(number)
    return {"id": cable, "from": end - MINUTE_MS, "to": end, "directions": directions}


# ------------------------------------------------------------------------------------------------- lists


def trouble_rows(state: FabricState) -> list[dict[str, Any]]:
    """Return a row for each cable, NIC and host that is not UP, the worst first, then the newest."""
    ranked_rows = []
    for name, subject in state.subjects.items():
        record = subject.record
        if record["state"] in ("UP", "UNKNOWN"):
            continue
        ranked_rows.append((-STATES.index(record["state"]), -record["since_ns"], name, record))
    ranked_rows.sort(key=lambda row: row[:3])
    return [
        {
            "id": name,
            "subject": arrow(name) if "@" not in name else _shard_text(record),
            "state": record["state"],
            "text": readable(record["text"]),
            "aliased": aliased_text(record["candidates"], name) if "@" not in name else "",
        }
        for _, _, name, record in ranked_rows
    ]


def _shard_text(record: LinkHealth) -> str:
    """Return the title of a problem of a whole shard, for which no link, NIC or host can be named."""
    kind = OF_SHARD.get(record["kind"], AlertKind.UNKNOWN)
    return f"{title_of(kind)}: shard {record['shard']}"


def deepest_rows(state: FabricState, drawn: DrawnPlan, metric: LinkMetric) -> list[dict[str, Any]]:
    """Return a table row for each link with one of the deepest queues; for the metric `load`, for each of the
    busiest links.
    """
    ranked_queues = [
        (queue.utilisation or 0.0 if metric == "load" else queue.delay_ns(queue.mean_bytes), number, queue)
        for number, queue in state.queues.all_newest().items()
        if number in drawn.index
    ]
    ranked_queues.sort(key=lambda row: (-row[0], row[1]))
    rows = []
    for value, number, queue in ranked_queues[:DEEPEST_SHOWN]:
        if value > 0:
            name = state.cable_graph.name(number)
            delay = delay_text(queue.delay_ns(queue.mean_bytes))
            rows.append(
                {
                    "id": name,
                    "link": arrow(name),
                    "depth": bytes_text(queue.mean_bytes) if queue.rate_bps else delay,
                    "delay": delay,
                    "load": "—" if queue.utilisation is None else percent_text(queue.utilisation),
                }
            )
    return rows


def rack_rows(state: FabricState, drawn: DrawnPlan, rack: str) -> list[dict[str, Any]]:
    """Return a row for each NIC of a rack, with its cable, the worst first."""
    plan = drawn.plan
    ranked_rows = []
    for nic, _, rack_index, _, cable, _ in plan.nics:
        if plan.racks[rack_index] != rack or cable < 0:
            continue
        uplink, downlink = plan.links[2 * cable : 2 * cable + 2]
        _, _, leaf, leaf_port = plan.cables[cable]
        row = _port_row(state, uplink, downlink, nic, f"{plan.nodes[leaf][0]}:{leaf_port}", nic)
        ranked_rows.append((-STATES.index(row["state"]), natural(nic), row))
    return [row for *_, row in sorted(ranked_rows, key=lambda ranked: ranked[:2])]


def _port_row(state: FabricState, out: int, back: int, port: str, far: str, nic: str) -> dict[str, Any]:
    """Return the row of a port: the state of its cable or its `nic`, and the queue and load of its outgoing
    link `out`. `back` is the link in the opposite direction.
    """
    queue = state.queues.newest(out)
    load = None if queue is None else queue.utilisation
    nic_state = state.nic_state.get(nic, 0)
    cable_state = max(state.state(out), state.state(back))
    return {
        "id": state.cable_graph.name(out),
        "port": port,
        "far": far,
        "state": STATES[max(cable_state, nic_state) if nic_state > UP else cable_state],
        "depth": "—" if queue is None else bytes_text(queue.mean_bytes),
        "load": "—" if load is None else percent_text(load),
    }


def node_rows(state: FabricState, drawn: DrawnPlan, node: str) -> list[dict[str, Any]]:
    """Return a row for each cable of a node, the worst first."""
    plan = drawn.plan
    ranked_rows = []
    for k, (low, low_port, high, high_port) in enumerate(plan.cables):
        low_name, high_name = plan.nodes[low][0], plan.nodes[high][0]
        if node not in (low_name, high_name):
            continue
        uplink, downlink = plan.links[2 * k : 2 * k + 2]
        if low_name == node:
            out, back, port, far = uplink, downlink, low_port, f"{high_name}:{high_port}"
        else:
            out, back, port, far = downlink, uplink, high_port, f"{low_name}:{low_port}"
        queue = state.queues.newest(out)
        row = _port_row(state, out, back, port, far, f"{node}/{port}")
        ranked_rows.append((-STATES.index(row["state"]), 0.0 if queue is None else -queue.mean_bytes, k, row))
    return [row for *_, row in sorted(ranked_rows, key=lambda ranked: ranked[:3])]


def links_of_job(flows: Mapping[str, Flow], job: str, state: FabricState) -> set[int]:
    """Return the numbers of the links that a job's flows cross."""
    numbers = {
        state.cable_graph.existing_number(link)
        for flow in flows.values()
        if flow["job"] == job
        for link in flow["links"]
    }
    return {number for number in numbers if number is not None}
