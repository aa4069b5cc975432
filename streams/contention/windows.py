"""When a queue stands at a link, why, and whose traffic it is: contention windows of one shard.

In: `LinkQueues`, a window after the other, with the shard's `LiveFlows` and its NICs. Out: `ContentionWindow`
records: opened, updated, closed. Judged from hosts alone: depths are inferred, rates are the senders' own
word. Pure; ids and times come from the data, so that a replay says the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas import codec
from streams.runtime.flow_table import FlowOnLink, LiveFlow, LiveFlows

__all__ = ["ContentionRules", "ContentionWatch", "Place", "place_of", "sound_queues", "window_id"]

Record = dict[str, Any]
Float64s = NDArray[np.float64]

MS: Final = 1_000_000
STEP_NS: Final = 5 * MS
"""Slots shorter than this are judged by their mean over it: a queue that stands, not one that passes by."""
UPDATE_NS: Final = 250 * MS
"""Least time between two records of a window, but for its close."""
REFRESH_NS: Final = 1_000 * MS
"""Most time between them."""
MEMORY_NS: Final = 2_000 * MS
"""Time constant in which earlier evidence for a kind is forgotten."""
GAP_NS: Final = 2_000 * MS
"""Where no queues were told of for so long, what stood before is not known to stand: its windows close."""
SUMMARY_NS: Final = 500 * MS
"""Records of slots this long sum up what others have told in short ones."""
RECALL_NS: Final = 2_000 * MS
"""How far back a new owner must read at most to be where the last one was."""
ASSUMED_BPS: Final = 10**9
"""Of a link whose rate is not known: its depths are ns at this rate."""
AVERAGE_NS: Final = 200 * MS
"""Time constant over which what flows send is held against how long a queue stands."""
FRESH_NS: Final = 100 * MS
SETTLED_NS: Final = 250 * MS
"""Ages of a window between which flow reports come to be of its own time: each tells of 100 ms and takes as
long again to arrive. Before, a link that queues is taken for full, as most are."""
LIKELY: Final = 0.7
"""How full that is."""
SLACK, FULL = 0.45, 0.75
"""What a link's flows send over what it could in the time that a queue stands there: below the first it is
held back, above the second it is not."""
ROOM: Final = 0.5
"""Share of its rate below which a NIC's own link is not what holds its flows back."""
FALL: Final = 0.5
"""Queues under a rate control come and go: one that stands for more than a third of the time stands."""
STIR: Final = 0.5
"""What a moment above the threshold takes back of the quiet before it: one that stands for less than two
thirds of the time comes to its end."""
PLAUSIBLE: Final = 0.4
"""Share of a link's rate that its flows must send for a queue there to be likely at once."""
DOUBTED: Final = 0.5
"""What time counts for where they send less and a window is to open: inference smears deep queues over other
links for a moment. So it does where all that crosses a link comes from one sender, whose own link carries no
more: a flow that was led elsewhere meets at its last link what of it still waits on its old path, and what
stands at a last link is told, for a moment, of a link before it."""
UNCLAIMED: Final = 0.25
"""What time counts for where all hosts report their flows and none crosses the link: a switch that paused, or
a host, holds probes up as a queue does; a flow that begins is reported before a window opens by this."""
NOTABLE: Final = 0.05
"""Share of what crosses a link from which on a sender counts."""
LISTED: Final = 0.01
"""Share from which on a flow is listed."""
LEAST_SCORE: Final = 0.2
"""What a kind must explain to be named."""
MAX_FLOWS: Final = 64
APART_NS: Final = 3_600 * 1_000 * MS
"""Fabric time and the log's clock are never this far apart."""
LONGEST_NS: Final = 60 * 1_000 * MS

KINDS: Final = ("COLLISION", "INCAST", "SLOW_SENDER", "SLOW_RECEIVER", "PAUSE_STORM")


@dataclass(frozen=True, slots=True)
class ContentionRules:
    """What counts as a standing queue. In bytes that is `delay_us` at the link's rate, within the bounds."""

    delay_us: float = 50.0
    least_kb: float = 15.0
    most_kb: float = 50.0
    open_ms: float = 15.0
    close_ms: float = 250.0

    @classmethod
    def of(cls, thresholds: Mapping[str, float]) -> ContentionRules:
        """Return the rules as the live thresholds have them."""
        return cls(**{
            name: thresholds[f"contention_{name}"]
            for name in ("delay_us", "least_kb", "most_kb", "open_ms", "close_ms")
        })  # fmt: skip

    def open_bytes(self, rate_bps: int) -> float:
        """Return the depth above which a queue stands."""
        wanted = self.delay_us * 1e-6 * (rate_bps or ASSUMED_BPS) / 8
        return min(max(wanted, 1e3 * self.least_kb), 1e3 * max(self.most_kb, self.least_kb))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a directed link lies. `sender`, `receiver`: the NIC at that end, None within the fabric."""

    sender: str | None
    receiver: str | None


def place_of(link: str, is_nic: Callable[[str], bool]) -> Place:
    """Return where a link lies; an end `node:port` is a NIC where the inventory has `node/port`."""
    ends = []
    for end in link.split(">"):
        node, _, port = end.rpartition(":")
        nic = f"{node}/{port}"
        ends.append(nic if is_nic(nic) else None)
    return Place(ends[0], ends[-1])


def sound_queues(record: Record, append_ns: int) -> Record:
    """Return a `LinkQueues` that the log took at `append_ns`. Raises BadRecord where its times cannot be."""
    start_ns, slot_ns, slots = record["window_start_ns"], record["slot_ns"], record["slots"]
    if abs(start_ns - append_ns) > APART_NS:
        raise codec.BadRecord(
            "OUT_OF_RANGE",
            f"LinkQueues.window_start_ns: {start_ns}, expected within an hour of the log's {append_ns}",
        )
    if not 0 < slot_ns * slots <= LONGEST_NS:
        raise codec.BadRecord(
            "OUT_OF_RANGE", f"LinkQueues: {slots} slots of {slot_ns} ns, expected a window of up to 60 s"
        )
    if not 0 <= record["part"] < record["parts"]:
        raise codec.BadRecord(
            "OUT_OF_RANGE", f"LinkQueues.part: {record['part']}, expected below {record['parts']} parts"
        )
    for link in record["links"]:
        if len(link["slot"]) != len(link["depth_bytes"]):
            raise codec.BadRecord(
                "OUT_OF_RANGE", f"LinkQueues.depth_bytes: {link['link']} has {len(link['depth_bytes'])}"
                f" depths for {len(link['slot'])} slots",
            )  # fmt: skip
    return record


def window_id(shard: str, link: str, opened_ns: int) -> str:
    """Return the identity of a window."""
    return f"{shard}/{link}/{opened_ns}"


@dataclass(slots=True)
class _Level:
    """Time for which something has held, on the whole: it falls at `fall` of the speed that it rises at."""

    fall: float = 1.0

    ns: int = 0
    since_ns: int = 0
    """When it last rose from 0."""

    def step(self, holds: bool, at_ns: int, length_ns: int, weight: float = 1.0) -> None:
        if holds:
            if not self.ns:
                self.since_ns = at_ns
            self.ns += round(weight * length_ns)
        else:
            self.ns = max(0, self.ns - round(self.fall * length_ns))

    def clear(self) -> None:
        self.ns = 0


@dataclass(slots=True)
class _Window:
    """An open window."""

    opened_ns: int
    update: int = -1
    kind: str = "UNKNOWN"
    told_ns: int = 0
    told: tuple[Any, ...] = ()
    peak_bytes: float = 0.0
    over_ns: int = 0
    over_byte_s: float = 0.0
    depth_bytes_ns: float = 0.0
    utilisation: float | None = None
    since_told_ns: int = 0
    sent: float = 0.0
    stood: float = 0.0
    averaged: float = 0.0
    """Averages: what flows sent, as a share of the rate; how long a queue stood; and of 1, as weight."""
    scores: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    score_ns: float = 0.0
    last: Record = field(default_factory=dict)
    """What was said last of flows and text: at its close they are gone."""


@dataclass(slots=True)
class _Link:
    name: str
    place: Place
    rate_bps: int = 0
    done_ns: int = 0
    """What lies before this is in the window's sums already."""
    over: _Level = field(default_factory=lambda: _Level(FALL))
    quiet: _Level = field(default_factory=lambda: _Level(STIR))
    window: _Window | None = None
    rising: _Window | None = None
    """What becomes the window where the queue goes on to stand."""
    others: tuple[str, ...] = ()
    stood_ns: int = 0
    """End of the last slot in which it was above the lower threshold."""
    stood: float = 0.0
    """Share of the last window of slots in which it was above the lower threshold."""
    standing: bool = False
    """Whether the queue was above the lower threshold at the end of the last window of slots."""

    @property
    def idle(self) -> bool:
        return self.window is None and not self.over.ns


@dataclass(slots=True)
class _Heard:
    """One link, or several that cannot be told apart, in one window of slots."""

    link: str
    rate_bps: int
    bound_bytes: float
    deepest_bytes: float
    utilisation: float | None
    others: tuple[str, ...]
    slot: list[int]
    depth_bytes: list[float]


@dataclass(frozen=True, slots=True)
class _View:
    """What is known of a link's traffic when it is judged."""

    link: _Link
    flows_on: list[FlowOnLink]
    fill: float | None
    """Whether it sends all that it can, 0 (it is held back) to 1; None where no flow is reported."""


class ContentionWatch:
    """One shard. `take` is given every record of `fabric.queues` of the shard in order.

    `flows` are to be advanced by the caller. `is_nic` asks the inventory, `hosts` how many hosts it knows,
    `rate_of` for a link's bit/s, 0 where it is not known.
    """

    def __init__(
        self,
        shard: str,
        flows: LiveFlows,
        is_nic: Callable[[str], bool],
        hosts: Callable[[], int],
        rate_of: Callable[[str], int],
    ) -> None:
        self.shard = shard
        self.flows = flows
        self._is_nic, self._hosts, self._rate_of = is_nic, hosts, rate_of
        self._links: dict[str, _Link] = {}
        self._past: dict[str, Record] = {}
        self._parts: dict[int, Record] = {}
        self._end_ns = 0
        self.repeated = 0
        """Records of windows that were judged already."""

    @property
    def needed_from_ns(self) -> int:
        """Start of the oldest slots that a new owner must read to go on from the published records."""
        oldest_ns = self._end_ns
        for link in self._links.values():
            if link.window is not None:
                oldest_ns = min(oldest_ns, link.window.told_ns)
            for level in (link.over, link.quiet):
                if level.ns:
                    oldest_ns = min(oldest_ns, level.since_ns)
        if self._parts:
            oldest_ns = min(oldest_ns, next(iter(self._parts.values()))["window_start_ns"])
        return max(oldest_ns, self._end_ns - RECALL_NS)

    @property
    def open_windows(self) -> int:
        """Windows that are open."""
        return sum(link.window is not None for link in self._links.values())

    def recover(self, records: Iterable[Record]) -> None:
        """Go on from the published records, any order, other shards' among them."""
        for record in records:
            if record["shard"] == self.shard:
                before = self._past.get(record["link"])
                if before is None or _newer(record, before):
                    self._past[record["link"]] = record
        for name, record in list(self._past.items()):
            if record["state"] != "CLOSED":
                self._link(name)

    def take(self, record: Record, rules: ContentionRules) -> list[Record]:
        """Take one part of a window of queues; return what is to be published.

        A window is judged once it is whole, or once a later one begins.
        """
        start_ns = record["window_start_ns"]
        if record["slot_ns"] >= SUMMARY_NS:
            self._summarise(record)
            return []
        if start_ns < self._end_ns:
            self.repeated += 1
            return []
        made: list[Record] = []
        if self._parts and next(iter(self._parts.values()))["window_start_ns"] != start_ns:
            if start_ns < next(iter(self._parts.values()))["window_start_ns"]:
                self.repeated += 1
                return []
            made += self._judge(list(self._parts.values()), rules)
        self._parts[record["part"]] = record
        if len(self._parts) == record["parts"]:
            made += self._judge(list(self._parts.values()), rules)
        return made

    def _summarise(self, record: Record) -> None:
        """Take the utilisation of a longer time; its depths are in other records already."""
        for told in record["links"]:
            link = self._links.get(told["link"])
            if link is not None and link.window is not None and told["utilisation"] is not None:
                link.window.utilisation = told["utilisation"]

    def _judge(self, parts: list[Record], rules: ContentionRules) -> list[Record]:
        first = parts[0]
        self._parts = {}
        start_ns, slot_ns = first["window_start_ns"], first["slot_ns"]
        length_ns = slot_ns * first["slots"]
        if length_ns <= 0:
            return []
        before: list[Record] = []
        if start_ns - self._end_ns >= GAP_NS and self._end_ns:
            before = self._lose_all()
        self._end_ns = start_ns + length_ns
        held = self._held()
        heard = {each.link: each for part in parts for each in self._merged(part, held, rules)}
        made: list[tuple[_Link, str]] = []
        for name in sorted(held | set(heard) | set(self._links)):
            link = self._link(name)
            told = heard.get(name)
            self._hear(link, told, name in held, start_ns, slot_ns, first["slots"], rules, made)
        records = before + self._tell(made, length_ns)
        for name in [name for name, link in self._links.items() if link.idle]:
            del self._links[name]
        return records

    def _lose_all(self) -> list[Record]:
        """Close what is open: nothing was told of any link for too long."""
        made = []
        for name in sorted(self._links):
            link = self._links[name]
            if link.window is not None:
                link.stood_ns = self._end_ns
                made.append((link, "LOST"))
        records = self._tell(made, 0)
        self._links.clear()
        return records

    def _merged(self, part: Record, held: set[str], rules: ContentionRules) -> Iterable[_Heard]:
        """Yield the links of a part that have a queue, a flow held back or a state; those that cannot be told
        apart as one, under the name that has a state, else that of the deepest."""
        groups: dict[int, list[Record]] = {}
        for link in part["links"]:
            if link["group"]:
                groups.setdefault(link["group"], []).append(link)
            elif (
                link["depth_max_bytes"] > rules.open_bytes(link["rate_bps"])
                or link["link"] in self._links
                or link["link"] in held
            ):
                yield _heard(link, [link], ())
        for links in groups.values():
            links.sort(key=lambda each: (-each["depth_mean_bytes"], each["link"]))
            known = [each for each in links if each["link"] in self._links]
            deepest = sum(each["depth_max_bytes"] for each in links)
            if not known and deepest <= rules.open_bytes(links[0]["rate_bps"]):
                continue
            one = min(known, key=lambda each: each["link"]) if known else links[0]
            others = tuple(sorted(each["link"] for each in links if each is not one))
            yield _heard(one, links, others)

    def _held(self) -> set[str]:
        """Return the first links of flows that their own hosts hold back, the last of those whose receivers
        do."""
        found = set()
        for flow, links in self.flows.limited_flows():
            for link in links:
                place = place_of(link, self._is_nic)
                if (flow.sender_limited and place.sender == flow.nic) or (
                    flow.receiver_limited and place.receiver == flow.peer
                ):
                    rate_bps = self._rate_of(link)
                    if not rate_bps or self._sent(self.flows.flows_on(link)) < ROOM * rate_bps:
                        found.add(link)
        return found

    @staticmethod
    def _sent(flows_on: list[FlowOnLink]) -> float:
        """Return bit/s over a link, flows that may take others counted as likely as they take it."""
        return sum(each.weight * each.flow.rate_bps for each in flows_on)

    def _link(self, name: str) -> _Link:
        """Return a link's state, as published where it has none yet."""
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = _Link(name, place_of(name, self._is_nic))
            past = self._past.get(name)
            if past is not None:
                link.done_ns = past["updated_ns"]
                link.rate_bps = past["rate_bps"]
                if past["state"] != "CLOSED":
                    link.window = _recovered(past)
                    del self._past[name]
        return link

    def _hear(
        self, link: _Link, told: _Heard | None, held: bool, start_ns: int, slot_ns: int, slots: int,
        rules: ContentionRules, made: list[tuple[_Link, str]],
    ) -> None:  # fmt: skip
        """Go through the slots of one link."""
        if told is not None:
            link.rate_bps, link.others = told.rate_bps, told.others
        elif not link.rate_bps:
            link.rate_bps = self._rate_of(link.name)
        end_ns = start_ns + slots * slot_ns
        high = rules.open_bytes(link.rate_bps)
        low = high / 2
        bound = 0.0 if told is None else told.bound_bytes
        each = max(1, math.ceil(STEP_NS / slot_ns))
        depths = _steps(told, slots, each)
        bound /= math.sqrt(each)  # of a step's mean
        weight = 1.0 if held else self._weight(link)
        at_ns, stood_ns = start_ns, 0
        for number, depth in enumerate(depths):
            length_ns = min(each, slots - number * each) * slot_ns
            over = (depth > high and depth > bound) or held
            above = (depth > low and depth > bound) or held
            link.standing = above
            stood_ns += above * length_ns
            if above:
                link.stood_ns = at_ns + length_ns
            fresh = at_ns >= link.done_ns
            if link.window is None:
                if not link.over.ns:
                    link.quiet.clear()
                    link.rising = _Window(at_ns, told_ns=at_ns)
                link.over.step(over and fresh, at_ns, length_ns, weight)
                window = link.rising if link.over.ns else None
            else:
                window = link.window
            if window is not None and at_ns >= window.opened_ns:
                link.quiet.step(not above, at_ns, length_ns)
                if fresh:
                    _add(window, depth, over, max(0.0, depth - high), length_ns)
            if link.window is None and link.over.ns >= max(rules.open_ms * MS, 2 * length_ns):
                link.window, link.rising = link.rising, None
                link.over.clear()
                made.append((link, "OPENED"))
            if link.window is not None and fresh and link.quiet.ns >= rules.close_ms * MS:
                made.append((link, "CLOSED"))
                break
            at_ns += length_ns
        if link.window is not None and link.done_ns < end_ns and told is not None:
            link.window.peak_bytes = max(link.window.peak_bytes, told.deepest_bytes)
            if told.utilisation is not None:
                link.window.utilisation = told.utilisation
        link.done_ns = max(link.done_ns, end_ns)
        link.stood = stood_ns / (slots * slot_ns)

    def _weight(self, link: _Link) -> float:
        """Return what time counts for towards a window, by what is reported of the link's flows."""
        flows_on = self.flows.flows_on(link.name)
        alone = len({flow.nic for flow in _weighty(flows_on, NOTABLE)}) == 1
        if not link.rate_bps or len(self.flows.hosts()) < self._hosts():  # others may send as well
            return DOUBTED if alone and link.place.receiver is not None else 1.0
        if not flows_on:
            return UNCLAIMED
        likely = self._sent(flows_on) >= PLAUSIBLE * link.rate_bps
        return 1.0 if likely and not (alone and link.place.sender is None) else DOUBTED

    def _tell(self, made: list[tuple[_Link, str]], length_ns: int) -> list[Record]:
        """Judge what stands, and make the records that are due."""
        views = {
            name: self._view(link, length_ns)
            for name, link in self._links.items()
            if link.window is not None or link.over.ns
        }
        for view in views.values():
            if view.link.window is not None and view.link.stood > 0:
                self._weigh(view, views, length_ns)
        records = []
        changed = dict.fromkeys(link.name for link, _ in made)
        for link, state in made:
            records.append(self._record(link, views[link.name], views, state))
        for name in sorted(views):
            link = views[name].link
            if link.window is not None and name not in changed and self._due(link, views[name]):
                records.append(self._record(link, views[name], views, "UPDATED"))
        return records

    def _view(self, link: _Link, length_ns: int) -> _View:
        """Return what is known of a link's traffic, and average it over its window's time.

        A port that has packets to send, and may, sends: its flows carry its rate for at least as long as a
        queue stands. Where they carry clearly less, something after it holds it back.
        """
        flows_on = self.flows.flows_on(link.name)
        window = link.window or link.rising
        if not flows_on or not link.rate_bps or window is None:
            return _View(link, flows_on, None)
        kept = math.exp(-length_ns / AVERAGE_NS)
        window.sent = kept * window.sent + (1 - kept) * self._sent(flows_on) / link.rate_bps
        window.stood = kept * window.stood + (1 - kept) * link.stood
        window.averaged = kept * window.averaged + 1 - kept
        ratio = window.sent / max(window.stood, 0.1 * window.averaged, 1e-9)
        fill = min(1.0, max(0.0, (ratio - SLACK) / (FULL - SLACK)))
        fill = max(fill, LIKELY * (1 - self._settled(link)))
        return _View(link, flows_on, fill)

    def _settled(self, link: _Link) -> float:
        """Return how far flow reports tell of a link's window itself, 0 to 1."""
        if link.window is None:
            return 0.0
        age_ns = self._end_ns - link.window.opened_ns
        return min(1.0, max(0.0, (age_ns - FRESH_NS) / (SETTLED_NS - FRESH_NS)))

    def _weigh(self, view: _View, views: Mapping[str, _View], length_ns: int) -> None:
        """Add what this moment says for each kind to what earlier ones said."""
        window = view.link.window
        if window is None:
            return
        kept = math.exp(-length_ns / MEMORY_NS)
        scores = self._scores(view, views)
        trust_ns = length_ns * (0.1 + 0.9 * self._settled(view.link))
        for kind in KINDS:
            window.scores[kind] = kept * window.scores[kind] + trust_ns * scores.get(kind, 0.0)
        window.score_ns = kept * window.score_ns + trust_ns
        window.kind = _best(window.scores, window.score_ns)[0]

    def _scores(self, view: _View, views: Mapping[str, _View]) -> dict[str, float]:
        """Return how well each kind explains what is seen of a link now, 0 to 1.

        A full link has too much to carry; one whose queue stands while its flows send less than its rate is
        held back by what lies after it. What of the fleet reports no flows makes the second less certain.
        """
        place, fill = view.link.place, view.fill
        covered = min(1.0, len(self.flows.hosts()) / max(1, self._hosts()))
        room = None if fill is None else (1 - fill) * covered
        sure = [each.flow for each in view.flows_on if each.sure]
        senders = len({flow.nic for flow in _weighty(view.flows_on, NOTABLE)})
        if place.receiver is not None:
            held = any(flow.receiver_limited and flow.peer == place.receiver for flow in sure)
            if room is None or fill is None:
                return {"SLOW_RECEIVER": 1.0} if held else {}
            behind = self._behind(view, views)
            return {
                "INCAST": fill * (1.0 if senders > 1 else 0.35),
                "SLOW_RECEIVER": max(room * (0.4 if behind else 1.0), 1 - fill if held else 0.0),
                "PAUSE_STORM": room if behind else 0.0,
            }
        root = self._root(view, views)
        if place.sender is not None:
            if any(flow.sender_limited and flow.nic == place.sender for flow in sure):
                return {"SLOW_SENDER": 1.0}
            spread = _spread(room, root)
            return spread | {"SLOW_SENDER": max(0.0, 0.8 - max(spread.values(), default=0.0))}
        if room is None or fill is None:
            # No flow is reported: without a standing link after it, too much to carry is all that is left.
            return {"COLLISION": 0.5} if root is None and covered >= 1 else {}
        meet = 1.0 if len(_weighty(view.flows_on, NOTABLE)) > 1 else 0.6
        # Where nothing after it stands, nothing holds it back: what meets here was too much for a while.
        return _spread(room, root) | {"COLLISION": meet * (fill if root is not None else max(fill, 0.5))}

    def _behind(self, view: _View, views: Mapping[str, _View]) -> list[str]:
        """Return the standing links with room that lead to a last link with room: with flows in common, or to
        its switch, which stops all that comes over a link when it stops any."""
        mine = {each.flow.flow_id for each in view.flows_on if each.sure}
        return sorted(
            name
            for name, other in views.items()
            if other.link.place.receiver is None
            and (other.fill is None or other.fill < 0.5)
            and (
                _leads_to(name, view.link.name)
                or any(each.sure and each.flow.flow_id in mine for each in other.flows_on)
            )
        )

    def _root(self, view: _View, views: Mapping[str, _View]) -> _View | None:
        """Return the standing last link that flows over this one go on to, the one with most of them; with
        none, one of the next switch that is held back, where this one is held back too."""
        counts: dict[str, int] = {}
        stopped: list[str] = []
        mine = {each.flow.flow_id for each in view.flows_on if each.sure}
        for name, other in views.items():
            if other.link.place.receiver is not None and name != view.link.name:
                shared = sum(each.sure and each.flow.flow_id in mine for each in other.flows_on)
                if shared:
                    counts[name] = shared
                if other.fill is not None and other.fill < 0.5 and _leads_to(view.link.name, name):
                    stopped.append(name)
        if not counts:
            held = view.fill is not None and view.fill < 0.5
            return views[min(stopped)] if stopped and held else None
        return views[min(counts, key=lambda name: (-counts[name], name))]

    def _due(self, link: _Link, view: _View) -> bool:
        window = link.window
        if window is None:
            return False
        waited_ns = self._end_ns - window.told_ns
        if waited_ns >= REFRESH_NS:
            return True
        return waited_ns >= UPDATE_NS and _gist(window, view) != window.told

    def _record(self, link: _Link, view: _View, views: Mapping[str, _View], state: str) -> Record:
        """Make a record of a link's window, and begin the figures of the next."""
        window = link.window
        assert window is not None  # noqa: S101  # a record is made of an open window alone
        closing = state in ("CLOSED", "LOST")
        kind, confidence = _best(window.scores, window.score_ns)
        span_ns = window.since_told_ns
        depth_bytes = window.depth_bytes_ns / span_ns if span_ns else 0.0
        flows, links = _contending(view.flows_on), self._together(view, views, kind)
        if closing and window.last:
            flows, links = window.last["flows"], window.last["links"]
        total = len(_weighty(view.flows_on))
        if closing and window.last:
            total = window.last["flows_total"]
        window.update += 1
        record = {
            "window_id": window_id(self.shard, link.name, window.opened_ns),
            "link": link.name,
            "shard": self.shard,
            "update": window.update,
            "state": "CLOSED" if closing else state,
            "kind": kind,
            "confidence": confidence,
            "opened_ns": window.opened_ns,
            "updated_ns": self._end_ns,
            "closed_ns": max(link.stood_ns or link.quiet.since_ns, window.opened_ns) if closing else None,
            "depth_bytes": depth_bytes,
            "depth_peak_bytes": window.peak_bytes,
            "delay_ns": depth_bytes * 8e9 / (link.rate_bps or ASSUMED_BPS),
            "utilisation": window.utilisation,
            "over_ns": window.over_ns,
            "over_byte_s": window.over_byte_s,
            "rate_bps": link.rate_bps,
            "flows": flows,
            "flows_total": total,
            "jobs": sorted({flow["job"] for flow in flows if flow["job"] is not None}),
            "links": links,
            "candidates": list(link.others[:MAX_FLOWS]),
        }
        unsure = sum(not each.sure for each in view.flows_on)
        record["text"] = _text(record, link.place, 0 if closing else unsure, lost=state == "LOST")
        window.told_ns, window.told = self._end_ns, _gist(window, view)
        window.depth_bytes_ns = 0.0
        window.since_told_ns = 0
        if flows or not window.last:
            window.last = record
        if closing:
            link.window = None
            link.over.clear()
            link.quiet.clear()
        return record

    def _together(self, view: _View, views: Mapping[str, _View], kind: str) -> list[str]:
        """Return the links that stand still for the same cause as this one."""
        if kind not in ("PAUSE_STORM", "INCAST"):
            return []
        root = view if view.link.place.receiver is not None else self._root(view, views)
        if root is None:
            return []
        behind = self._behind(root, views)
        return sorted({root.link.name, *behind}) if behind else []


def _leads_to(link: str, last: str) -> bool:
    """Whether a link ends at the node where another begins."""
    return link.partition(">")[2].rpartition(":")[0] == last.partition(">")[0].rpartition(":")[0]


def _newer(record: Record, than: Record) -> bool:
    return (record["opened_ns"], record["update"]) > (than["opened_ns"], than["update"])


def _recovered(record: Record) -> _Window:
    """Return an open window as its last record left it."""
    window = _Window(record["opened_ns"], record["update"], record["kind"], record["updated_ns"])
    window.utilisation = record["utilisation"]
    window.peak_bytes = record["depth_peak_bytes"]
    window.over_ns, window.over_byte_s = record["over_ns"], record["over_byte_s"]
    if record["kind"] in window.scores:
        window.scores[record["kind"]] = record["confidence"] * MEMORY_NS
        window.score_ns = MEMORY_NS
    window.last = record
    return window


def _heard(one: Record, links: list[Record], others: tuple[str, ...]) -> _Heard:
    """Return a link as its group was heard: depths of links that cannot be told apart belong together."""
    slot, depth = one["slot"], one["depth_bytes"]
    deepest = one["depth_max_bytes"]
    if len(links) > 1:
        slot = [number for each in links for number in each["slot"]]
        depth = [value for each in links for value in each["depth_bytes"]]
        deepest = max(each["depth_max_bytes"] for each in links)
    bound = max(each["bound_bytes"] for each in links)
    utilisation = None if others else one["utilisation"]
    return _Heard(one["link"], one["rate_bps"], bound, deepest, utilisation, others, slot, depth)


def _steps(told: _Heard | None, slots: int, each: int) -> list[float]:
    """Return the mean depth of each step of `each` slots; the last step may have fewer."""
    count = -(-slots // each)
    if told is None or not told.slot:
        return [0.0] * count
    slot = np.asarray(told.slot, np.int64)
    depth = np.asarray(told.depth_bytes, np.float64)
    inside = (slot >= 0) & (slot < slots)
    sums = np.bincount(slot[inside] // each, depth[inside], count)
    lengths = np.full(count, each)
    lengths[-1] = slots - (count - 1) * each
    return [float(value) for value in sums / lengths]


def _add(window: _Window, depth: float, over: bool, above_bytes: float, length_ns: int) -> None:
    window.depth_bytes_ns += depth * length_ns
    window.since_told_ns += length_ns
    window.peak_bytes = max(window.peak_bytes, depth)
    if over:
        window.over_ns += length_ns
        window.over_byte_s += above_bytes * length_ns * 1e-9


def _weighty(flows_on: list[FlowOnLink], least: float = LISTED) -> list[LiveFlow]:
    """Return the flows that surely cross, but for those that send too little a share to matter: streams of
    acknowledgements. Where all stand still, all matter."""
    sure = [each.flow for each in flows_on if each.sure]
    total = sum(flow.rate_bps for flow in sure)
    return [flow for flow in sure if flow.rate_bps >= least * total]


def _spread(room: float | None, root: _View | None) -> dict[str, float]:
    """Return how well a standing last link explains one before it: held back with it, or by its incast."""
    if room is None or root is None:
        return {}
    root_fill = 0.0 if root.fill is None else root.fill
    return {"PAUSE_STORM": room * (1 - root_fill), "INCAST": 0.8 * room * root_fill}


def _best(scores: Mapping[str, float], weight: float) -> tuple[str, float]:
    """Return the kind that explains most, and by how much more than the next."""
    if weight <= 0:
        return "UNKNOWN", 0.0
    (kind, best), (_, second), *_ = sorted(scores.items(), key=lambda each: (-each[1], each[0]))
    if best < LEAST_SCORE * weight:
        return "UNKNOWN", 0.0
    return kind, min(1.0, (best - second) / weight)


def _gist(window: _Window, view: _View) -> tuple[Any, ...]:
    """Return what makes a record worth sending before its time."""
    return window.kind, frozenset(flow.flow_id for flow in _weighty(view.flows_on)[:MAX_FLOWS])


def _contending(flows_on: list[FlowOnLink]) -> list[Record]:
    """Return the flows that surely cross, the heaviest first."""
    sure = _weighty(flows_on)
    total = sum(flow.rate_bps for flow in sure)
    return [
        {
            "flow_id": flow.flow_id,
            "job": flow.job,
            "tenant": flow.tenant,
            "nic": flow.nic,
            "peer": flow.peer,
            "rate_bps": flow.rate_bps,
            "share": flow.rate_bps / total if total else 0.0,
        }
        for flow in sure[:MAX_FLOWS]
    ]


_WHAT: Final = {
    "COLLISION": "fabric collision",
    "INCAST": "incast",
    "SLOW_SENDER": "slow sender",
    "SLOW_RECEIVER": "slow receiver",
    "PAUSE_STORM": "pause storm",
    "UNKNOWN": "no cause found",
}


def _text(record: Record, place: Place, unsure: int, *, lost: bool) -> str:
    """Say a window in one line."""
    near, _, far = record["link"].partition(">")
    names = [nic or end.rpartition(":")[0] for nic, end in ((place.sender, near), (place.receiver, far))]
    words = [f"{names[0]} to {names[1]}: {_WHAT[record['kind']]}"]
    if record["flows_total"]:
        senders = len({flow["nic"] for flow in record["flows"]})
        count = record["flows_total"]
        words.append(f"{count} flow{'s' * (count > 1)} of {senders} sender{'s' * (senders > 1)}")
    elif unsure:
        words.append(f"{unsure} flow{'s' * (unsure > 1)} may cross it")
    else:
        words.append("no reported flow")
    if record["jobs"]:
        words.append(f"job {' and '.join(record['jobs'][:3])}")
    if record["state"] == "CLOSED":
        lasted_s = (record["closed_ns"] - record["opened_ns"]) / 1e9
        words.append(f"over after {lasted_s:.2f} s" if not lost else "not measured any more")
        words.append(f"at most {_bytes(record['depth_peak_bytes'])}")
    elif record["depth_bytes"] > 0:
        words.append(f"{_bytes(record['depth_bytes'])} wait, {record['delay_ns'] / 1e3:.0f} us")
    if record["candidates"]:
        others = record["candidates"]
        more = f" and {len(others) - 2} more" if len(others) > 2 else ""
        words.append(f"not told apart from {', '.join(others[:2])}{more}")
    return ", ".join(words)


def _bytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
