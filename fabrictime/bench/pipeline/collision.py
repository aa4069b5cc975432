"""Measures contention on the default `up`: two transfers that meet on a random uplink, repeatedly.

Times run from the start of the second transfer to the append of the link's `ContentionWindow`, and from there
to the append of the first report of a flow that was moved.
"""

from __future__ import annotations

import random
import time
from typing import Final

from fabrictime.bench import Progress, Value
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.control.live_fabric import FlowRun
from fabrictime.bench.pipeline._events import Event, events_of, latency_figures
from fabrictime.bench.pipeline._product import running_product
from fabrictime.testbed.control import ControlClient, socket_path
from schemas.ids import near_node
from schemas.records import ActionReport, ContentionState, ContentionWindow
from schemas.topics import ACTIONS, CONTENTION

TRIALS, QUICK_TRIALS = 10, 2
WARM_S: Final = 15.0
LOAD_S: Final = 5.0
SHARE: Final = 0.7
"""Rate of each transfer as a share of the link's: each fits the link, both together exceed it by 40 %."""
PORTS: Final = range(20_000, 32_000)
TRIED: Final = 64
REST_S: Final = (2.0, 4.0)


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or one with `quick`."""
    count = QUICK_TRIALS if quick else TRIALS
    with running_product(progress, None) as product:
        control = ControlClient(socket_path(product.data))
        links = sorted(
            link for link in control.ask("show")["links"] if link.startswith("leaf") and ">spine" in link
        )
        time.sleep(WARM_S)
        chance, trials = random.SystemRandom(), []
        for number in range(count):
            link = chance.choice(links)
            trials.append((_collide(control, link, chance), link))
            progress(f"collision: {number + 1} of {count} on {link}")
            time.sleep(chance.uniform(*REST_S))
        windows = events_of(product.bootstrap, CONTENTION, trials[0][0] - 1)
        actions = events_of(product.bootstrap, ACTIONS, trials[0][0] - 1)
    opened = [_opened_s(windows, begin_s, link) for begin_s, link in trials]
    opened_ms = [
        (at_s - begin_s) * 1e3 for at_s, (begin_s, _) in zip(opened, trials, strict=True) if at_s is not None
    ]
    moved_ms = [
        (moved_s - at_s) * 1e3
        for at_s, (begin_s, _) in zip(opened, trials, strict=True)
        if at_s is not None and (moved_s := _moved_s(actions, at_s, begin_s + LOAD_S)) is not None
    ]
    return latency_figures("contention", opened_ms, count) | latency_figures(
        "contention_to_first_move", moved_ms, len(opened_ms)
    )


def _collide(control: ControlClient, link: str, chance: random.Random) -> float:
    """Run two transfers over one uplink to their ends; return the second's start, s since the epoch."""
    fabric_state = control.ask("show")
    rate_bps = round(fabric_state["settings"]["fabric_rate_bps"] * SHARE)
    leaf = near_node(link)
    near = chance.sample(sorted(nic["host"] for nic in fabric_state["nics"] if nic["leaf"] == leaf), 2)
    far = chance.sample(sorted(nic["host"] for nic in fabric_state["nics"] if nic["leaf"] != leaf), 2)
    ports = [
        _ports(control, source, destination, link, chance)
        for source, destination in zip(near, far, strict=True)
    ]
    begin_s, flows = 0.0, []
    for source, destination, (sport, dport) in zip(near, far, ports, strict=True):
        begin_s = time.time()
        spec = {"source": source, "destination": destination, "sport": sport, "dport": dport}
        flows.append(FlowRun(control, **spec, rate_bps=rate_bps, duration_s=LOAD_S, job="transfer"))
    for flow in flows:
        flow.join()
    return begin_s


def _ports(
    control: ControlClient, source: str, destination: str, link: str, chance: random.Random
) -> tuple[int, int]:
    """Draw source and destination port of a flow so that its route crosses a link. Raises CannotRun."""
    dport = chance.randrange(40_000, 45_000)
    for sport in chance.sample(PORTS, TRIED):
        if link in control.tcp_route(source, destination, sport, dport):
            return sport, dport
    raise CannotRun(f"none of {TRIED} source ports leads from {source} over {link}")


def _opened_s(windows: list[Event[ContentionWindow]], begin_s: float, link: str) -> float | None:
    """Return when the log first had a window of the link for the load since `begin_s`; None if never."""
    for event in windows:
        is_here = link == event.record["link"] or link in event.record["candidates"]
        is_open = event.record["state"] != ContentionState.CLOSED
        if is_here and is_open and begin_s <= event.at_s <= begin_s + LOAD_S:
            return event.at_s
    return None


def _moved_s(actions: list[Event[ActionReport]], begin_s: float, end_s: float) -> float | None:
    """Return when the first flow was moved within a span; None if none was."""
    for event in actions:
        is_move = event.record["action"] == "REROUTE" and event.record["outcome"] == "APPLIED"
        if is_move and begin_s <= event.at_s <= end_s:
            return event.at_s
    return None
