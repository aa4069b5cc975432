"""Explains the route of a flow: its links and their health, its other paths, and the decisions about it.

The command reads topics of the log. It takes a flow id or a part of it, or source:port, and prints text or
JSON. `explain` does no I/O; the other functions read the log and print.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.screen import table_of, terminal
from fabrictime.commands.views.actions import decided, suppressed_record
from fabrictime.state import action_entries, action_text
from fabrictime.state.action_state import SuppressedAction
from fabrictime.state.fabric_state import STATES, FabricState, is_active
from fabrictime.state.flow_history import SIDE_NS
from fabrictime.state.labels import arrow
from schemas import codec
from schemas.ids import host_of
from schemas.input_error import InputError
from schemas.kafka.reader import BEGINNING, Start, TopicReader, back
from schemas.kafka.settings import KafkaSettings
from schemas.messages import decode_message
from schemas.records import Fallbacks, Flow
from schemas.topics import (
    ACTIONS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    FALLBACKS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    POLICY_CYCLES,
    QUEUES,
    TOPICS,
    Topic,
)
from schemas.units import bps_text, bytes_text, delay_text, percent_text, seconds_text
from streams.runtime.flow_routes import FlowRoute, FlowRouteTable, Links

if TYPE_CHECKING:
    from rich.console import RenderableType

S: Final = 1_000_000_000
FLOWS_BACK_S: Final = 6.0
ROUNDS_BACK_S: Final = 30.0
SHOWN_ROUTES: Final = 12
SHOWN: Final = 30
_COLOURS: Final = {"DOWN": "red", "GREY": "yellow", "FLAPPING": "magenta", "UP": "green"}


class Seen:
    """The state that explains a flow, built from messages of the log."""

    def __init__(self, since_s: float, registry: codec.Registry | None = None) -> None:
        self.state = FabricState(
            lambda value: codec.decode(value, FLOWS.type, registry), round(since_s * S) + 60 * S
        )
        self.routes = FlowRouteTable()
        self.fallbacks: dict[str, Fallbacks] = {}
        self.unreadable = 0
        self._registry = registry

    def take(self, topic: str, key: str, value: bytes | None, append_ns: int) -> None:
        """Process one message; count it if it is unreadable."""
        try:
            if topic == FLOWS.name:
                self.state.take_flows(key, value, append_ns)
            elif topic == FLOW_ROUTES.name:
                self.routes.take(key.encode(), value, self._registry)
            elif topic == FALLBACKS.name:
                if value is not None:
                    self.fallbacks[key] = decode_message(FALLBACKS, key, value, self._registry)
            elif topic != QUEUES.name or value is None or not self._is_block(value):
                record = None if value is None else decode_message(TOPICS[topic], key, value, self._registry)
                self.state.take(topic, key, record, append_ns)
        except codec.BadRecord:
            self.unreadable += 1

    def _is_block(self, value: bytes) -> bool:
        """Return whether a LinkQueues record has short slots; such records list only links with queues."""
        return bool(codec.decode_head(value, QUEUES.record, "slots", self._registry)["slots"] > 1)


def find(text: str, flows: Mapping[str, Flow], others: Iterable[str] = ()) -> str:
    """Return the id of the one flow that `text` identifies. Raises ValueError unless exactly one flow fits.

    `text` is a flow id, a part of one, or the flow's source as address:port, host:port or :port. `others`:
    ids of flows of which only decisions are known.
    """
    if text in flows or text in others:
        return text
    before, colon, port = text.rpartition(":")
    matches = {
        name
        for name, flow in flows.items()
        if colon
        and port == str(flow["source_port"])
        and before in ("", flow["source_address"], host_of(name), flow["nic"])
    }
    matches = matches or {name for name in (*flows, *others) if action_text.matches(text, name)}
    if len(matches) == 1:
        return matches.pop()
    if not matches:
        raise InputError(
            f"flow {text!r}: no such flow among {len(flows):,} that are reported; expected an id or a part of"
            " it, or its source as address:port"
        )
    named = ", ".join(sorted(matches)[:5]) + (f" and {len(matches) - 5:,} more" if len(matches) > 5 else "")
    raise InputError(f"flow {text!r}: expected one flow, it names {len(matches):,}: {named}")


def explain(snapshot: Seen, flow_id: str, now_ns: int) -> dict[str, Any]:
    """Return the explanation of a flow as a JSON-ready dict; a link's figures are None without data."""
    state, actions = snapshot.state, snapshot.state.actions
    flow = state.flows.flows().get(flow_id)
    entries = action_entries.entries(actions, now_ns, flow_id)
    entries = action_entries.with_effects(entries, actions, now_ns)
    suppressed = [action for action in actions.suppressed() if action.flow_id == flow_id]
    host = host_of(flow_id)
    limits = actions.limits(host)
    own = FlowRoute(())
    others: list[dict[str, Any]] = []
    if flow is not None:
        routes = snapshot.routes.of(flow["nic"], flow["peer"], flow["peer_port"])
        own = routes.get(flow["source_port"], own)
        own = FlowRoute(tuple(flow["links"]) or own.links, own.reverse)
        others = _others(snapshot, flow, routes, own, now_ns)
    mode = actions.mode(host)
    return {
        "flow_id": flow_id,
        "flow": None if flow is None else dict(flow),
        "mode": {
            "act": mode.act,
            "by": mode.by,
            "since_ns": mode.since_ns,
            "text": action_text.mode_text(actions),
        },
        "protected": bool(flow is not None and flow["job"] in limits.protected_jobs),
        "allowed": sorted(limits.allowed),
        "takes": [_link(state, link, now_ns) for link in own.links],
        "answers_take": [_link(state, link, now_ns) for link in own.reverse],
        "could_take": others,
        "decisions": [action_text.as_record(entry) for entry in entries],
        "suppressed": [suppressed_record(action) for action in suppressed],
        "policy_heard_ns": max((shard.at_ns for shard in actions.shards.values()), default=None),
        "unreadable": snapshot.unreadable,
    }


def _link(state: FabricState, link: str, now_ns: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "link": link,
        "state": "UNKNOWN",
        "text": "",
        "depth_bytes": None,
        "wait_ns": None,
        "utilisation": None,
        "contention": [
            window["text"]
            for window in state.contention.values()
            if is_active(window, now_ns) and link in (window["link"], *window["candidates"])
        ],
    }
    number = state.cable_graph.number(link)
    if number is None:
        return facts
    facts |= {"state": STATES[state.state(number)]}
    subject, queue = state.subject_of(number), state.queues.newest(number)
    if subject is not None and subject.record is not None and subject.record["state"] != "UP":
        facts |= {"text": subject.record["text"]}
    if queue is not None:
        facts |= {
            "depth_bytes": queue.mean_bytes if queue.rate_bps else None,
            "wait_ns": queue.delay_ns(queue.mean_bytes),
            "utilisation": queue.utilisation,
        }
    return facts


def _others(
    snapshot: Seen, flow: Flow, routes: Mapping[int, FlowRoute], own: FlowRoute, now_ns: int
) -> list[dict[str, Any]]:
    """Return the flow's other routes, one per list of links: first in the policy's order, then by health."""
    fallbacks = snapshot.fallbacks.get(host_of(flow["flow_id"]), {"flows": ()})
    ranked: list[int] = next(
        (entry["other_paths"] for entry in fallbacks["flows"] if entry["flow_id"] == flow["flow_id"]), []
    )
    grouped: dict[Links, list[int]] = {}
    for port, other_route in routes.items():
        if other_route.links != own.links:
            grouped.setdefault(other_route.links, []).append(port)
    rows = []
    for links, ports in grouped.items():
        known_links = [_link(snapshot.state, link, now_ns) for link in links]
        worst = max(known_links, key=lambda link_facts: STATES.index(link_facts["state"]))
        loads = [
            link_facts["utilisation"] for link_facts in known_links if link_facts["utilisation"] is not None
        ]
        waits = [link_facts["wait_ns"] for link_facts in known_links if link_facts["wait_ns"] is not None]
        ranks = [ranked.index(port) + 1 for port in ports if port in ranked]
        rows.append(
            {
                "rank": min(ranks, default=None),
                "ports": ports,
                "links": list(links),
                "state": worst["state"],
                "detected_by": worst["text"],
                "busiest": max(loads, default=None),
                "wait_ns": max(waits, default=None),
            }
        )
    rows.sort(
        key=lambda route: (route["rank"] or 1 << 30, STATES.index(route["state"]), route["busiest"] or 0.0)
    )
    return rows


# ------------------------------------------------------------------------------------------- the log, text


def main(
    cluster: KafkaSettings | str,
    text: str,
    *,
    since_s: float,
    as_json: bool,
    registry: codec.Registry | None = None,
) -> None:
    """Print the explanation of a flow. Raises ValueError for an unreadable log or an ambiguous `text`."""
    snapshot = Seen(since_s, registry)
    flow_id = read(cluster, text, snapshot, since_s)
    now_ns = time.time_ns()
    now_ns -= snapshot.state.simulated.lag_ns(now_ns)
    story = explain(snapshot, flow_id, now_ns)
    if as_json:
        print(json.dumps(story, allow_nan=False))
        return
    terminal(200).print(draw(snapshot, story, now_ns, since_s))


def read(cluster: KafkaSettings | str, text: str, snapshot: Seen, since_s: float) -> str:
    """Fill `snapshot` from the log, also with the flow reports of the host of the flow that `text` names.

    Return the flow's id. Raises ValueError for an unreadable log or an ambiguous `text`.
    """
    recent = back(since_s)
    starts: dict[Topic, Start] = {
        **dict.fromkeys((CONFIG, INVENTORY, LINK_HEALTH, FLOW_ROUTES, FALLBACKS), BEGINNING),
        QUEUES: back(FLOWS_BACK_S),
        CONTENTION: back(max(since_s, 60.0)),
        DECISIONS: recent,
        ACTIONS: recent,
        POLICY_CYCLES: back(ROUNDS_BACK_S),
        FLOWS: back(FLOWS_BACK_S),
    }
    with TopicReader.open(cluster, starts) as first:
        for message in first.read_to_end():
            snapshot.take(message.topic, message.key, message.value, message.append_ns)
    flows, actions = snapshot.state.flows.flows(), snapshot.state.actions
    decided = [
        *(decision["flow_id"] for decision in actions.decisions.values()),
        *(action.flow_id for action in actions.suppressed()),
    ]
    flow_id = find(text, flows, decided)
    host = host_of(flow_id)
    with TopicReader.open(cluster, {FLOWS: back(since_s + SIDE_NS / S)}, key=host) as reader:
        messages = [message for message in reader.read_to_end() if message.value is not None]
    actions.flow_history.restart(host)
    for report in messages:
        actions.flow_history.take(host, report.value or b"", report.append_ns)
    return flow_id


def draw(snapshot: Seen, story: Mapping[str, Any], now_ns: int, since_s: float) -> RenderableType:
    """Return the explanation as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    flow = story["flow"]
    parts: list[RenderableType] = [Text(story["flow_id"], "bold")]
    if flow is None:
        parts.append(Text("it is not reported any more: closed, or its host has stopped to report", "yellow"))
    else:
        parts += [Text(line) for line in _about(flow, story)]
    parts.append(Text(story["mode"]["text"], "green" if story["mode"]["act"] else "bold"))
    if story["takes"]:
        parts += [Text("\ntakes now", "bold"), _links_table(story["takes"])]
        if story["answers_take"]:
            parts += [Text("its answers take", "bold"), _links_table(story["answers_take"])]
    elif flow is not None:
        parts.append(Text("\nwhich links it takes is not known: nobody traced its ports", "yellow"))
    if story["could_take"]:
        parts += [Text("\ncould take", "bold"), _routes_table(story["could_take"])]
        if len(story["could_take"]) > SHOWN_ROUTES:
            parts.append(Text(f"and {len(story['could_take']) - SHOWN_ROUTES} more ways", "dim"))
    elif flow is not None:
        parts.append(Text("\nno other path of it was traced", "yellow"))
    entries = action_entries.with_effects(
        action_entries.entries(snapshot.state.actions, now_ns, story["flow_id"]),
        snapshot.state.actions,
        now_ns,
    )
    parts.append(Text(""))
    parts += decided(entries, f"for it within {seconds_text(since_s)}", SHOWN, effects=True)
    parts.append(Text(""))
    suppressed = [
        action for action in snapshot.state.actions.suppressed() if action.flow_id == story["flow_id"]
    ]
    parts += _suppressed_lines(suppressed, story, now_ns)
    if snapshot.unreadable:
        parts.append(Text(f"{snapshot.unreadable:,} records could not be read", "yellow"))
    return Group(*parts)


def _about(flow: Flow, story: Mapping[str, Any]) -> list[str]:
    lets = {"MOVE": "moved", "PACE": "paced"}
    can = " and ".join(lets.get(name, name.lower()) for name in flow["can"])
    job = f", job {flow['job']}" if flow["job"] else ""
    job += " (protected)" if story["protected"] else ""
    job += f", tenant {flow['tenant']}" if flow["tenant"] else ""
    limit = "" if flow["rate_limit_bps"] is None else f", paced to {bps_text(flow['rate_limit_bps'])}"
    source = f"{flow['source_address']}:{flow['source_port']}"
    peer = f"{flow['peer_address']}:{flow['peer_port']}"
    return [
        f"{flow['nic']} → {flow['peer']}, {flow['protocol']} {source} → {peer}{job}",
        f"sends {bps_text(flow['rate_bps'])}{limit}, round trip {delay_text(flow['rtt_ns'])}; "
        + (f"its endpoint allows it to be {can}" if can else "its endpoint allows no action"),
    ]


def _links_table(links: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich.text import Text

    rows = []
    for link in links:
        queue = delay_text(link["wait_ns"])
        if link["depth_bytes"] is not None:
            queue = f"{bytes_text(link['depth_bytes'])}, {queue}"
        busy = "—" if link["utilisation"] is None else percent_text(link["utilisation"])
        notes = "; ".join(token for token in (link["text"], *link["contention"]) if token)
        state = Text(link["state"], _COLOURS.get(link["state"], ""))
        rows.append((arrow(link["link"]), state, queue, busy, notes))
    return table_of(("link", "state", "queue", "busy", "notes"), rows, wrapped=("notes",))


def _routes_table(routes: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich.text import Text

    rows = []
    for route in routes[:SHOWN_ROUTES]:
        ports = ", ".join(map(str, route["ports"][:3])) + (" …" if len(route["ports"]) > 3 else "")
        inner = route["links"][1:-1] or route["links"]
        over = ", ".join(map(arrow, inner)) + (f": {route['detected_by']}" if route["detected_by"] else "")
        busiest = "—" if route["busiest"] is None else percent_text(route["busiest"])
        rank = "—" if route["rank"] is None else str(route["rank"])
        state = Text(route["state"], _COLOURS.get(route["state"], ""))
        rows.append((rank, ports, state, delay_text(route["wait_ns"]), busiest, over))
    return table_of(("rank", "ports", "state", "queue", "busiest", "over"), rows, wrapped=("over",))


def _suppressed_lines(
    suppressed: Sequence[SuppressedAction], story: Mapping[str, Any], now_ns: int
) -> list[RenderableType]:
    from rich.text import Text

    if suppressed:
        return [
            Text(
                f"suppressed: {action_text.action_text(action)}, "
                f"cause: {action_text.suppressed_cause(action)}; "
                f"{action_text.suppressed_text(action, now_ns)}",
                "yellow",
            )
            for action in suppressed
        ]
    if story["policy_heard_ns"] is None:
        return [Text("the policy has published no cycle: suppressed actions are not known", "yellow")]
    return [Text("no action for it is suppressed", "green")]
