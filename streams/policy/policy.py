"""One shard's policy: which flows go on by another path, when and why, and which go back.

In: `LinkHealth`, `ContentionWindow`, `LinkQueues`, the shard's `LiveFlows`, the ways that each flow could
take, what actuators made of decisions, the records of `fabric.config`. Out: a `Round`: `Decision`s,
`Fallbacks` that changed, what was held back and why. Pure: times are the caller's, ties are broken by a
seeded draw, so the same inputs give the same decisions. The mode is the actuators' business: OBSERVE decides
the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from schemas.limits import EVERYONE, Limits
from schemas.topics import DECISIONS, FALLBACKS, Topic
from streams.policy.action_budget import Ledger
from streams.policy.fallbacks import Ranks
from streams.policy.flow import NOWHERE, Choices, Flow, Move, Past
from streams.policy.loads import Links, Loads, Weight
from streams.policy.path_health import WELL, Grade, PathHealth, State
from streams.policy.path_options import Options
from streams.policy.rates import Rates, WantedRate
from streams.policy.uplink_assignment import UplinkAssignment, UplinkRequest
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow, LiveFlows

__all__ = ["Held", "Policy", "Round", "Rules", "Said", "Ways"]

Record = dict[str, Any]

MS: Final = 1_000_000
S: Final = 1_000 * MS
FULL: Final = 1.001
"""Demand over rate above which a link cannot carry what is sent."""
ENOUGH: Final = 1.1
"""A link is relieved to this at first, since demands are estimates; to `FULL` only where its queue goes on to
stand after that."""
EVEN: Final = 0.5
"""Share of the highest rate over a link that counts as even with it."""
RELIEF: Final = 0.8
"""Where no path has room, one is taken that is then loaded less than this share of the one left: each such
move lowers the highest load that it touches, so moves come to an end."""
WINDOW_STALE_NS: Final = 5 * S
"""A window that nobody told of for so long stands no more; it is told anew each second."""
EVENLY: Final = 0.99
"""Two bursts that differ by less are the same."""
TURNS: Final = 1.5
"""How many times its line a NIC's flows would send, each as fast as it does while it sends, from which on
they take turns."""
SLOWED: Final = 0.85
"""Flows between two NICs that together send at less than this share of what that NIC can are slowed by
others."""
AGAIN_NS: Final = 5 * S
"""A queue that comes back within this is the same trouble."""
STEERED_NS: Final = 600 * S
"""How long a flow is remembered to have been steered: it does not go back to links that it left."""
FIRST_PORT, LAST_PORT = 49_152, 65_535
"""Where ways are not known, a path is drawn from the ephemeral ports (RFC 6335)."""
EARLIER_NS: Final = 5 * S
"""Reports from so long before an owner's begin are taken as if they were of its time."""
REFLEXES_MOST: Final = 100_000
"""Reflexes of flows that nobody has reported yet: the newest ones are kept."""
AVOID_NS: Final = 60 * S
"""How long a port that an actuator could not move a flow to is not tried again for that flow."""
QUICK_TRIES: Final = 3
"""So many ports are tried one at once after the other where actuators fail."""
DONE: Final = frozenset({"APPLIED", "DUPLICATE"})


@dataclass(frozen=True, slots=True)
class Rules:
    """What policy waits for."""

    expires_ns: int = 1 * S
    """A decision may be applied for so long."""
    confirm_ns: int = 500 * MS
    """After that, until a report that still shows the old path means that it was not."""
    retry_most_ns: int = 60 * S
    """Longest wait until it is decided again; the first is 2 s, each next one twice as long."""
    hold_down_ns: int = 10 * S
    hold_down_most_ns: int = 600 * S
    failback_step_ns: int = 100 * MS
    failback_steps: int = 8
    """Flows go back in so many steps."""
    cool_down_ns: int = 5 * S
    """After a flow was steered, until it may be again; twice as long each time within ten minutes."""
    cool_down_most_ns: int = 300 * S
    settle_ns: int = 1 * S
    """After a link was relieved, until a window that still stands there counts anew; and how long flows that
    take turns are seen to meet before they are moved: all have been reported of by then."""
    slow_ns: int = 200_000
    """Round trip above a flow's least that counts as delay, where its path is not known."""
    slow_for_ns: int = 1 * S
    """How long that lasts until the flow tries another path, as in PLB (Qureshi et al., SIGCOMM 2022)."""
    fallbacks_ns: int = 1 * S
    """Least time between two rankings of a host's flows, but for those that a link's health is about."""


class Ways(Protocol):
    """What is asked of the paths that a flow could take."""

    def of(self, flow: LiveFlow) -> Mapping[int, FlowRoute]:
        """Return entropy value to the links there and back, as traced for the flow's own ports; empty:
        unknown. The same object as before means that nothing changed."""


class Said(NamedTuple):
    """One message to publish."""

    topic: Topic
    key: str
    record: Record


class Held(NamedTuple):
    """An action that was wanted and not taken."""

    flow_id: str
    action: str
    cause: str
    """PROTECTED, NOT_ALLOWED, ACTIONS_PER_S, MOVED_SHARE: the limits; NO_LIVING_PATH, NO_BETTER_PATH;
    COOL_DOWN; WAITING: was decided and not carried out, is decided again later; NOT_MOVABLE: its owner does
    not let it."""
    reason: str


@dataclass(slots=True)
class Round:
    """What came of one look at everything."""

    decisions: list[Said] = field(default_factory=list)
    fallbacks: list[Said] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)


class Policy:
    """The policy of one shard. `epoch` grows with each new owner; `rate_of`: a directed link's bit/s, 0 where
    it is not known. `flows` are to be advanced by the caller, before each `decide`."""

    def __init__(
        self, shard: str, epoch: int, flows: LiveFlows, ways: Ways, rate_of: Callable[[str], int], *,
        seed: int = 0, rules: Rules | None = None,
    ) -> None:  # fmt: skip
        self.shard, self.epoch = shard, epoch
        self.rules = rules or Rules()
        self.wellness = PathHealth(self.rules.hold_down_ns, self.rules.hold_down_most_ns)
        self._live, self._ways, self._rate_of = flows, ways, rate_of
        self._options = Options(shard, seed, self.wellness)
        self._draw = self._options.draw
        self._ranks = Ranks(shard, epoch, self.rules.fallbacks_ns, self._options, self._limits_of)
        self._flows: dict[str, Flow] = {}
        self._windows: dict[str, Record] = {}
        self._records: dict[str, Record] = {}
        self._limits: dict[str, Limits] = {}
        self._ledger = Ledger()
        self._loads = Loads(rate_of)
        self._ends: Counter[str] = Counter()
        self._seq = 0
        self._relieved_ns: dict[str, int] = {}
        self._troubled: dict[str, tuple[int, int]] = {}
        """Link to since when and until when, ns, a collision was seen there."""
        self._back_ns, self._back_batch = 0, 0
        self._limits_are_new = False
        self._now_ns = 0
        self._round = Round()
        self._past: dict[str, Past] = {}
        self._reflexes: dict[str, tuple[int, int, int]] = {}
        """Flow that was not seen yet to the path it left by reflex, the one it took, and when."""
        self._hurried_version = 0
        self._rates = Rates(rate_of)
        self._lanes = UplinkAssignment(rate_of)
        self._turning: dict[str, float] = {}
        """NICs whose flows take turns, with the bit/s that each sends while it does."""
        self._slowed: set[str] = set()
        """Fabric links of their flows that are slowed."""
        self._lanes_ns, self._lanes_version = 0, -1
        self._spread: dict[str, tuple[str, ...]] = {}
        """NICs that put an even part of what they send on each of these links instead."""
        self._goal: dict[str, float] = {}
        """Bit/s that each link carries at most once all flows go by their lanes."""
        self._met_ns: dict[str, int] = {}
        """Link to since when, ns, flows that take turns are seen to meet there."""
        self._entries: dict[tuple[str, str, int], tuple[Choices, dict[str, Choices]]] = {}

    # ------------------------------------------------------------------------------------ what comes in

    def recover(self, decisions: Iterable[Record]) -> None:
        """Go on from the `Decision`s of earlier epochs, in their order: what was moved goes home, what was
        steered rests, and the limits count."""
        for decision in decisions:
            name, at_ns, path = decision["flow_id"], decision["at_ns"], decision["from_path"]
            if decision["shard"] != self.shard or decision["epoch"] >= self.epoch or path is None:
                continue
            home, subject, steered = self._past.get(name, Past(None, "", ()))
            kind, reason = decision["reason"]["kind"], decision["reason"]["id"]
            if kind in ("DOWN", "GREY"):
                home, subject = path if home is None else home, reason.rpartition("/")[0]
            elif kind in ("COLLISION", "DELAY"):
                home, steered = None, (*steered, (at_ns, path))
            elif decision["action"] == "RESTORE":
                home = None
            self._past[name] = Past(home, subject, steered)
            self._ledger.note(name, decision["host"], at_ns)

    def take_health(self, subject: str, record: Record | None) -> None:
        """Take a subject's `LinkHealth`; None: it is forgotten."""
        if record is None or record["shard"] == self.shard:
            self.wellness.take(subject, record)

    def take_contention(self, record: Record) -> None:
        """Take a `ContentionWindow`."""
        if record["shard"] != self.shard:
            return
        known = self._windows.get(record["link"])
        order = (record["opened_ns"], record["update"])
        if known is None or order > (known["opened_ns"], known["update"]):
            self._windows[record["link"]] = record
            self._rates.take_contention(record)

    @property
    def needs_queues(self) -> bool:
        """Whether `LinkQueues` matter now: an incast stands, or flows are held for one."""
        return bool(self._rates.held()) or any(
            window["kind"] == "INCAST" and window["state"] != "CLOSED" for window in self._windows.values()
        )

    def take_queues(self, record: Record) -> None:
        """Take a `LinkQueues`."""
        if record["shard"] == self.shard:
            self._rates.take_queues(record)

    def take_config(self, records: Mapping[str, Record]) -> None:
        """Take the records of `fabric.config` in force, by key."""
        self._records = dict(records)
        self._limits.clear()
        self._limits_are_new = True
        for f in self._flows.values():  # what was refused before, or only observed, may be let now
            f.tries, f.wait_ns = 0, 0
            for _ in range(min(f.unproven, len(f.steered))):
                f.steered.pop()
            f.unproven = 0
        self._rates.take_slices(records[EVERYONE]["slices"] if EVERYONE in records else ())

    def take_action(self, record: Record) -> None:
        """Take an actuator's `ActionReport`: what failed is decided anew, what it did by itself is known."""
        if record["shard"] not in (self.shard, ""):  # a reflex is of no shard
            return
        f = self._flows.get(record["flow_id"])
        if f is None:
            if record["outcome"] == "LOCAL_REPAIR" and None not in (record["from_path"], record["to_path"]):
                self._reflex_unseen(record)
            return
        if record["action"] in ("PACE", "SLICE"):
            if record["epoch"] == self.epoch:
                self._rates.take_action(record)
            return
        if record["outcome"] == "LOCAL_REPAIR" and None not in (record["from_path"], record["to_path"]):
            # one from long before this owner says where a flow was, which may have moved since
            if record["at_ns"] > self.epoch * MS - EARLIER_NS or f.live.path == record["to_path"]:
                self._reflex(f, record["from_path"], record["to_path"], record["at_ns"])
            return
        move = f.move
        if move is None or (record["epoch"], record["seq"]) != (self.epoch, move.seq):
            return
        if record["outcome"] in DONE or record["outcome"] == "OBSERVED":
            return
        f.move, f.tries = None, f.tries + 1
        if record["outcome"] == "FAILED":
            f.avoid[move.to_path] = record["at_ns"] + AVOID_NS
        if record["outcome"] != "FAILED" or f.tries >= QUICK_TRIES:
            self._wait(f, record["at_ns"])

    def _reflex_unseen(self, record: Record) -> None:
        """Keep what an actuator did by itself, before this owner was, with a flow not reported yet."""
        name, from_path, at_ns = record["flow_id"], record["from_path"], record["at_ns"]
        earlier = self._reflexes.pop(name, None)
        if earlier is not None and earlier[1] == from_path:
            from_path = earlier[0]
        self._reflexes[name] = (from_path, record["to_path"], at_ns)
        if len(self._reflexes) > REFLEXES_MOST:
            del self._reflexes[next(iter(self._reflexes))]

    def _reflex(self, f: Flow, from_path: int, to_path: int, at_ns: int) -> None:
        """Take it that an actuator moved a flow by itself: as if it had been decided here."""
        if f.home is None:
            f.home, f.home_subject = from_path, self._state(f).reason.rpartition("/")[0]
        f.home_from_ns = at_ns + self.rules.hold_down_ns
        self._ledger.note(f.live.flow_id, f.host, at_ns)
        until_ns = at_ns + self.rules.expires_ns + self.rules.confirm_ns
        f.move = Move(to_path, frozenset({from_path, f.live.path} - {to_path}), until_ns, -1)
        f.path, f.way = to_path, f.ways.get(to_path, NOWHERE)

    def _limits_of(self, host: str) -> Limits:
        found = self._limits.get(host)
        if found is None:
            found = self._limits[host] = Limits.of(self._records, host)
        return found

    # ------------------------------------------------------------------------------------ a round

    @property
    def hurries(self) -> bool:
        """Whether the health of links is another than when flows were last looked at."""
        return self.wellness.version != self._hurried_version

    def hurry(self, now_ns: int) -> Round:
        """Let flows leave what has just died, by what is known of them; `decide` is to follow at once."""
        self._begin(now_ns)
        self._fail_over()
        return self._round

    def counts(self) -> tuple[int, int]:
        """Return how many flows are known, and how many of these can be moved to where it is known."""
        flows = self._flows.values()
        return len(flows), sum(bool(f.ways) and "MOVE" in f.live.can for f in flows)

    def decide(self, now_ns: int) -> Round:
        """Look at everything as of `now_ns`, fabric time; return what follows."""
        self._begin(now_ns)
        self._look()
        self._fail_over()
        self._steer()
        self._try_elsewhere()
        self._fail_back()
        self._hold_rates()
        limits, self._limits_are_new = self._limits_are_new, False
        ranked = self._ranks.decide(
            self._flows.values(), self._loads, self.wellness.changed(), limits_are_new=limits
        )
        self._round.fallbacks += [Said(FALLBACKS, record["host"], record) for record in ranked]
        return self._round

    def held_rates(self) -> dict[str, tuple[str, int]]:
        """Return action and bit/s of the flows that are held to a rate, by id."""
        return self._rates.held()

    def _begin(self, now_ns: int) -> None:
        self._now_ns, self._round = now_ns, Round()
        self._hurried_version = self.wellness.version
        self._options.begin(now_ns)

    def _look(self) -> None:
        """Bring flows, demands and loads up to date."""
        live = self._live.open_flows()
        here = {flow.flow_id for flow in live}
        for name in [name for name in self._flows if name not in here]:
            del self._flows[name]
        queued = {
            link
            for window in self._standing()
            for link in (window["link"], *window["candidates"])
        }  # fmt: skip
        self._ends = Counter(end for flow in live for end in (flow.nic, ">" + flow.peer))
        self._loads = Loads(self._rate_of)
        self._options.ports = set()
        for flow in live:
            f = self._flows.get(flow.flow_id)
            fresh = f is None or f.live is not flow
            new = f is None
            if f is None:
                f = self._flows[flow.flow_id] = Flow(flow, self._now_ns)
            ways = self._ways.of(flow)
            if fresh or f.ways is not ways or f.move is not None or f.path != flow.path:
                f.live, f.ways = flow, ways
                f.choices = self._options.choices_of(f)
                if new:
                    self._remember(f)
                self._confirm(f)
                f.path = flow.path if f.move is None else f.move.to_path
                f.way = f.ways.get(f.path, NOWHERE)
                if f.path == flow.path and flow.hops and flow.hops != f.way.links:
                    f.way = FlowRoute(flow.hops, f.way.reverse)
            while f.steered and f.steered[0][0] <= self._now_ns - STEERED_NS:
                f.steered.popleft()
            if f.exclusive:
                self._options.ports |= {(f.ends, f.path), (f.ends, flow.path)}
            f.queues = tuple(link for link in flow.hops or f.links if link in queued) if queued else ()
            if fresh:
                f.demand.hear(flow.rate_bps, bool(f.queues), self._now_ns, flow.system_ns, flow.bytes_total,
                              flow.busy_share)  # fmt: skip
                self._hear_delay(f)
        self._weigh()

    def _remember(self, f: Flow) -> None:
        """Take over what an earlier owner did with a flow."""
        past = self._past.pop(f.live.flow_id, None)
        if past is not None:
            f.home, f.home_subject = past.home, past.subject
            f.steered.extend((at_ns, f.ways.get(path, NOWHERE).links) for at_ns, path in past.steered)
        reflex = self._reflexes.pop(f.live.flow_id, None)
        if reflex is not None and reflex[1] == f.live.path:
            self._reflex(f, *reflex)

    def _weigh(self) -> None:
        """Judge what flows would send. Who is squeezed at a link gets as much there as any other, in an even
        share; who gets far less wants no more (Bertsekas and Gallager, Data Networks, 6.5: max-min)."""
        most: dict[str, float] = {}
        for f in self._flows.values():
            for link in f.queues:
                most[link] = max(most.get(link, 0.0), f.live.rate_bps)
        for f in self._flows.values():
            held = f.live.sender_limited or f.live.receiver_limited
            f.squeezed = (
                bool(f.queues) and not held
                and any(f.live.rate_bps >= EVEN * most[link] > 0 for link in f.queues)
            )  # fmt: skip
            f.bps = f.demand.bps(f.live.rate_bps, f.squeezed, self._fair_bps(f) if f.squeezed else 0.0)
        groups: dict[tuple[str, str, str | None], list[Flow]] = {}
        for f in self._flows.values():
            groups.setdefault((f.live.nic, f.live.peer, f.live.job), []).append(f)
        self._find_turns(groups)
        for group in groups.values():
            self._weigh_group(group)
            for f in group:
                self._loads.add(f.links, f.weight)

    def _find_turns(self, groups: Mapping[tuple[str, str, str | None], list[Flow]]) -> None:
        """Find the NICs that send to one peer after the other, and where that is slowed. How fast the flows
        of one job to one peer are while they send: what all of them send over the longest time that one of
        them takes. A NIC could send to each as fast as any of the job does to any; as fast as its line where
        a queue stands on the way of its flows."""
        fast: dict[str, list[tuple[float, list[Flow]]]] = {}
        of_job: dict[str, float] = {}
        for (nic, _, job), group in groups.items():
            busy = max(f.demand.busy for f in group)
            if job is not None and busy:
                bps = sum(f.demand.busy_bps for f in group) / busy
                fast.setdefault(nic, []).append((bps, group))
                of_job[job] = max(of_job.get(job, 0.0), bps)
        self._turning, self._slowed = {}, set()
        for nic, found in fast.items():
            line_bps = next((self._rate_of(f.links[0]) for _, group in found for f in group if f.links), 0)
            if len(found) < 2 or sum(bps for bps, _ in found) < TURNS * line_bps:
                continue
            queue = any(f.queues for _, group in found for f in group)
            most_bps = line_bps if queue else max(of_job[group[0].live.job or ""] for _, group in found)
            self._turning[nic] = most_bps = min(line_bps, most_bps)
            for bps, group in found:
                if bps < SLOWED * most_bps:
                    longest = max(f.demand.busy for f in group)
                    for f in group:
                        if f.demand.busy >= SLOWED * longest:
                            self._slowed.update(f.links[1:-1])

    def _weigh_group(self, group: list[Flow], *, doubted: bool = False) -> None:
        """Set what the flows of one job between two NICs put on their links: each the same share of what all
        of them send while they do; `doubted`: as much as their NIC lets through."""
        first = group[0].live
        line_bps = self._rate_of(group[0].links[0]) if group[0].links else 0
        turning_bps = self._turning.get(first.nic)
        if turning_bps is not None and first.job is not None:
            bursts_bps = [turning_bps / len(group)] * len(group)
        elif len(group) > 1 and line_bps:
            sum_bps = line_bps if doubted else sum(max(f.bps, f.demand.peak_bps) for f in group)
            bursts_bps = [min(line_bps, sum_bps) / len(group)] * len(group)
        else:
            bursts_bps = [f.bps for f in group]
        for f, burst_bps in zip(group, bursts_bps, strict=True):
            f.weight = Weight(first.nic, (first.peer, first.job), f.bps * f.demand.duty, burst_bps)

    def _standing(self) -> list[Record]:
        """Return the windows that are open, by link."""
        return [
            window
            for _, window in sorted(self._windows.items())
            if window["state"] != "CLOSED" and window["updated_ns"] > self._now_ns - WINDOW_STALE_NS
        ]

    def _confirm(self, f: Flow) -> None:
        """See what became of the last decision."""
        move = f.move
        if move is not None:
            if f.live.path not in move.via:
                f.move, f.tries, f.wait_ns, f.unproven = None, 0, 0, 0
            elif self._now_ns >= move.until_ns:
                f.move = None
                f.tries += 1
                self._wait(f, self._now_ns)
        if f.move is None and f.home == f.live.path:
            f.home = None

    def _wait(self, f: Flow, now_ns: int) -> None:
        """Let a flow be for a while, twice as long with each try."""
        f.wait_ns = now_ns + min(S << min(f.tries, 30), self.rules.retry_most_ns)

    def _fair_bps(self, f: Flow) -> float:
        """Return what a flow would get if only the two NICs' own links were shared, each evenly."""
        if not f.links:
            return 0.0
        there = self._rate_of(f.links[0]) / self._ends[f.live.nic]
        return min(there, self._rate_of(f.links[-1]) / self._ends[">" + f.live.peer])

    # ------------------------------------------------------------------------------------ failover

    def _state(self, f: Flow) -> State:
        """Return what is known of the worst of a flow's ends and links."""
        worst = self.wellness.of_end(f.live.nic)
        for other in (self.wellness.of_end(f.live.peer), self._options.grade(f.way)):
            if other is not WELL and other[:2] > worst[:2]:
                worst = other
        return worst

    def _fail_over(self) -> None:
        """Move every flow off a dead or lossy path: dead ones first, then the heaviest."""
        if self.wellness.sound:
            return
        bad = [(f, state) for f in self._flows.values() if (state := self._state(f)).grade >= Grade.GREY]
        bad.sort(key=lambda each: (-each[1].grade, -each[0].bps, self._draw(each[0].live.flow_id)))
        for f, state in bad:
            dead = state.grade is Grade.DEAD
            if self._now_ns < f.wait_ns and f.cause == state.reason:
                self._hold(f, "REROUTE", "WAITING", state.reason)
                continue
            if f.cause != state.reason:  # what was tried before was for something else
                f.tries = 0
            if f.ways:
                path = self._best(f, Grade.GREY if dead else Grade.HELD)
            else:
                path = self._anywhere(f) if f.links else None
            if path is None:
                self._hold(f, "REROUTE", "NO_LIVING_PATH" if dead else "NO_BETTER_PATH", state.reason)
                continue
            home = f.path if f.home is None else f.home
            if self._move(f, "REROUTE", path, "DOWN" if dead else "GREY", state.reason, urgent=True):
                f.home, f.home_subject = home, state.reason.rpartition("/")[0]

    def _best(self, f: Flow, most: Grade) -> int | None:
        """Return the best other path of a flow that is no worse than `most`, None where there is none."""
        if max(self.wellness.of_end(end).grade for end in (f.live.nic, f.live.peer)) is Grade.DEAD:
            return None
        found = [
            (state[:2], self._after(f, way.links), self._draw(f.live.flow_id, path), path)
            for state, way, path in self._options.open_to(f, lambda state: state.grade <= most)
        ]
        return min(found)[-1] if found else None

    def _after(self, f: Flow, links: Links) -> float:
        """Return the highest load on a path once a flow has moved there, of links new to it."""
        return self._loads.worst((link for link in links if link not in f.links), f.weight)

    def _anywhere(self, f: Flow) -> int:
        """Draw another path of a flow whose ways nobody knows."""
        ports = LAST_PORT - FIRST_PORT + 1
        path = FIRST_PORT + self._draw(f.live.flow_id, self._seq) % ports
        return path if path != f.path else FIRST_PORT + (path + 1 - FIRST_PORT) % ports

    # ------------------------------------------------------------------------------------ steering

    def _steer(self) -> None:
        """Clear collisions inside the fabric with the fewest moves."""
        self._keep_apart()
        windows = [window for window in self._standing() if window["kind"] == "COLLISION"]
        steady: dict[str, list[Flow]] = {}
        """Flows over a link but those of NICs that take turns, which have been seen to."""
        if windows:
            for f in self._flows.values():
                if f.live.nic not in self._turning:
                    for link in dict.fromkeys(f.links):
                        steady.setdefault(link, []).append(f)
        for window in windows:
            names = (window["link"], *window["candidates"])
            link = max(names, key=lambda name: (self._loads.share(name), name))
            crossing = steady.get(link, [])
            since_ns = max(self._troubled_since_ns(window), self._relieved_ns.get(link, 0))
            stands = self._now_ns - since_ns >= self.rules.settle_ns
            if stands and self._loads.share(link) <= FULL:
                self._doubt(crossing)
            self._relieve(link, crossing, FULL if stands else ENOUGH, window["window_id"])

    def _keep_apart(self) -> None:
        """Let flows of NICs that take turns go by lanes of their NICs (`uplink_pinning.py`), where they
        meet others' and that shows: in a window, or in how fast they are."""
        met = self._meetings()
        self._met_ns = {link: self._met_ns.get(link, self._now_ns) for link in met}
        due_ns = self._now_ns - self.rules.settle_ns
        if min(self._met_ns.values(), default=self._now_ns) > due_ns:
            return
        turning = [
            f for f in self._flows.values() if f.live.nic in self._turning and len(f.links) > 2 and f.choices
        ]
        if self._now_ns >= self._lanes_ns + self.rules.fallbacks_ns or (
            self._lanes_version != self.wellness.version
        ):  # fmt: skip
            self._lanes_ns, self._lanes_version = self._now_ns, self.wellness.version
            self._goal = self._assign_lanes(turning)
        wanted = []
        for f, entry in self._astray(turning):
            links = [link for link in f.links[1:-1] if self._met_ns.get(link, self._now_ns) <= due_ns]
            if links and f.move is None:
                wanted.append((f, entry, max(links, key=lambda name: (self._loads.share(name), name))))
        # A NIC after the other, those with the least to move first: where limits leave some of it for later,
        # flows of as many NICs as can be are out of each other's way.
        count = Counter(f.live.nic for f, _, _ in wanted)
        wanted.sort(
            key=lambda each: (
                count[each[0].live.nic], self._draw(each[0].live.nic), -each[0].bps, each[0].live.flow_id,
            )
        )  # fmt: skip
        for f, entry, link in wanted:
            reason = met[link] or f"{self.shard}/{link}/{self._met_ns[link]}"
            path = self._path_by(f, entry)
            if path is None:
                self._hold(f, "REROUTE", "NO_BETTER_PATH", reason)
            elif self._now_ns < max(self._cool_ns(f), f.wait_ns):
                self._hold(f, "REROUTE", "COOL_DOWN", reason)
            else:
                self._steered(f, path, "COLLISION", reason)

    def _astray(self, turning: list[Flow]) -> Iterator[tuple[Flow, str]]:
        """Give the flows that are not where they are to enter the fabric, each with the link to enter by: its
        NIC's lane, or where that has none, links that fewer of its group take than of an even share."""
        groups: dict[tuple[str, str, str | None], list[Flow]] = {}
        for f in turning:
            lane = self._lanes.of(f.live.nic)
            if lane is None:
                groups.setdefault((f.live.nic, f.live.peer, f.live.job), []).append(f)
            elif f.links[1] != lane:
                yield f, lane
        for group in groups.values():
            links = self._spread.get(group[0].live.nic, ())
            taken = Counter(f.links[1] for f in group)
            most = math.ceil(len(group) / max(1, len(links)))
            for f in sorted(group, key=lambda f: self._draw(f.live.flow_id)):
                if links and taken[f.links[1]] > most:
                    entry = min(links, key=lambda link: (taken[link], self._draw(f.live.flow_id, link)))
                    taken[f.links[1]] -= 1
                    taken[entry] += 1
                    yield f, entry

    def _meetings(self) -> dict[str, str]:
        """Return the fabric links where flows that take turns are too many and are slowed, or a queue stands,
        each with the id of its window, if any."""
        met = dict.fromkeys((link for link in sorted(self._slowed) if self._loads.share(link) > ENOUGH), "")
        for window in self._standing():
            for link in (window["link"], *window["candidates"]):
                if window["kind"] == "COLLISION" and self._loads.share(link) > ENOUGH:
                    met[link] = window["window_id"]
        return met

    def _assign_lanes(self, turning: list[Flow]) -> dict[str, float]:
        """Give lanes to NICs; return the bit/s that each link carries at most once all flows go by theirs. A
        NIC with as many flows to each peer as there are links into the fabric needs none: it puts an even
        part of what it sends on each, for which fewer flows have to move."""
        wants: dict[str, UplinkRequest] = {}
        sizes: dict[str, Counter[tuple[str, str | None]]] = {}
        calm = self.wellness.calm
        for f in turning:
            nic = f.live.nic
            want = wants.get(nic)
            if want is None:
                want, sizes[nic] = wants.setdefault(nic, UplinkRequest(self._turning[nic])), Counter()
            want.flows[f.links[1]] += 1
            sizes[nic][f.live.peer, f.live.job] += 1
            for link, ways in self._entries_of(f).items():
                if calm or any(self._options.grade(way).grade is Grade.WELL for way, _ in ways):
                    want.open[link] += 1
        self._spread = {
            nic: tuple(sorted(want.open)) for nic, want in sorted(wants.items())
            if want.open and min(sizes[nic].values()) >= len(want.open)
        }  # fmt: skip
        self._lanes.assign({nic: want for nic, want in wants.items() if nic not in self._spread}, self._draw)
        goal: dict[str, dict[str, float]] = {}
        for f in turning:
            nic, entries = f.live.nic, self._entries_of(f)
            lane, spread, bps = self._lanes.of(nic), self._spread.get(nic, ()), self._turning[nic]
            if spread:
                size = sizes[nic][f.live.peer, f.live.job]
                bps *= math.ceil(size / len(spread)) / size
            for entry in spread or (lane or f.links[1],):
                links = entries[entry][0][0].links if entry in entries else f.links
                for link in links[1:-1]:
                    of_nic = goal.setdefault(link, {})
                    of_nic[nic] = max(of_nic.get(nic, 0.0), bps)
        return {link: sum(of_nic.values()) for link, of_nic in goal.items()}

    def _entries_of(self, f: Flow) -> dict[str, Choices]:
        """Return the ways that a flow could take by the link that they enter the fabric by."""
        known = self._entries.get(f.ends)
        if known is None or known[0] is not f.choices:
            found: dict[str, list[tuple[FlowRoute, tuple[int, ...]]]] = {}
            for choice in f.choices:
                if len(choice[0].links) > 2:
                    found.setdefault(choice[0].links[1], []).append(choice)
            known = self._entries[f.ends] = (f.choices, {link: tuple(ways) for link, ways in found.items()})
        return known[1]

    def _path_by(self, f: Flow, entry: str) -> int | None:
        """Return a well path that enters the fabric by a link, not left of late, on which no link is loaded
        more, once all flows are where they are to go, than the worst of those that it leaves; None where
        there is none."""
        left = {links for _, links in f.steered}
        before = self._loads.worst(f.links[1:-1])
        found = []
        among = self._entries_of(f).get(entry, ())
        for _, way, path in self._options.open_to(f, lambda state: state.grade is Grade.WELL, among):
            if way.links in left:
                continue
            after = max(
                self._goal.get(link, 0.0) / (self._rate_of(link) or math.inf) for link in way.links[1:-1]
            )
            if after <= max(ENOUGH, RELIEF * before):
                found.append((after, self._draw(f.live.flow_id, path), path))
        return min(found)[-1] if found else None

    def _troubled_since_ns(self, window: Record) -> int:
        """Return since when a link's queue stands, or comes again and again, as it does behind jobs that send
        in bursts."""
        since_ns, last_ns = self._troubled.get(window["link"], (0, 0))
        if self._now_ns - last_ns > AGAIN_NS:
            since_ns = window["opened_ns"]
        self._troubled[window["link"]] = since_ns, self._now_ns
        return since_ns

    def _doubt(self, flows: Iterable[Flow]) -> None:
        """Count flows at what they could send: what they did send does not explain that a queue stands."""
        groups: dict[tuple[str, str, str | None], None] = {}
        for f in flows:
            f.bps = f.demand.bps(f.live.rate_bps, f.squeezed, self._fair_bps(f), doubted=True)
            groups[f.live.nic, f.live.peer, f.live.job] = None
        for nic, peer, job in groups:
            group = [
                f
                for f in self._flows.values()
                if f.live.nic == nic and f.live.peer == peer and f.live.job == job
            ]
            for f in group:
                self._loads.add(f.links, f.weight, -1)
            self._weigh_group(group, doubted=True)
            for f in group:
                self._loads.add(f.links, f.weight)

    def _relieve(self, link: str, crossing: list[Flow], most: float, window_id: str) -> None:
        """Move the heaviest flows away until no more than `most` of a link's rate is left."""
        together = {id(f): self._loads.together((link,), f.weight) for f in crossing}
        crossing.sort(key=lambda f: (-together[id(f)], -f.bps, self._draw(f.live.flow_id)))
        for f in crossing:
            if self._loads.share(link) <= most:
                return
            if f.move is not None or link not in f.links or not self._known(f):
                continue
            path = self._relief(f, link)
            if path is None:
                self._hold(f, "REROUTE", "NO_BETTER_PATH", window_id)
            elif self._now_ns < max(self._cool_ns(f), f.wait_ns):
                self._hold(f, "REROUTE", "COOL_DOWN", window_id)
            elif self._steered(f, path, "COLLISION", window_id):
                self._relieved_ns[link] = self._now_ns

    def _known(self, f: Flow) -> bool:
        """Whether it has been seen for long enough to tell what it does."""
        return self._now_ns - f.since_ns >= self.rules.settle_ns

    def _relief(self, f: Flow, link: str) -> int | None:
        """Return the well path without `link`, and not left of late, that is loaded least once the flow is
        there; None where none has room and none is clearly better than the one that it has.

        Of flows that send together none is put where more of them meet than on the path that it leaves, and
        where fewer do, that is better at the same load: each such move lowers the sum of squares of how many
        meet, so these come to an end as well."""
        left = {links for _, links in f.steered}
        found = []
        for _, way, path in self._options.open_to(f, lambda state: state.grade is Grade.WELL):
            if link in way.links or way.links in left:
                continue
            new = [each for each in way.links if each not in f.links]
            old = [each for each in f.links if each not in way.links]
            after, before = self._loads.worst(new, f.weight), self._loads.worst(old)
            meet, met = self._loads.together(new, f.weight, more=True), self._loads.together(old, f.weight)
            apart = meet < EVENLY * met
            if meet <= met / EVENLY and (
                after <= FULL or after < RELIEF * before or (apart and after <= before)
            ):
                found.append((not apart, after, meet, self._draw(f.live.flow_id, path), path))
        return min(found)[-1] if found else None

    def _steered(self, f: Flow, path: int, kind: str, reason: str) -> bool:
        """Decide that a flow is steered, where the limits let it; where it was before is forgotten."""
        links = f.links
        if not self._move(f, "REROUTE", path, kind, reason):
            return False
        f.home = None
        f.steered.append((self._now_ns, links))
        f.unproven += 1
        return True

    def _cool_ns(self, f: Flow) -> int:
        """Return when a flow may be steered again."""
        if not f.steered:
            return 0
        rules = self.rules
        wait_ns = min(rules.cool_down_ns << min(len(f.steered) - 1, 30), rules.cool_down_most_ns)
        return f.steered[-1][0] + wait_ns

    # ------------------------------------------------------------------------------------ unknown paths

    def _hear_delay(self, f: Flow) -> None:
        rtt_ns = f.live.rtt_ns
        if rtt_ns is None:
            return
        f.least_rtt_ns = rtt_ns if f.least_rtt_ns is None else min(f.least_rtt_ns, rtt_ns)
        if rtt_ns <= f.least_rtt_ns + self.rules.slow_ns:
            f.slow_since_ns = None
        elif f.slow_since_ns is None:
            f.slow_since_ns = self._now_ns

    def _try_elsewhere(self) -> None:
        """Let flows that wait for long, on paths that nobody knows, try another."""
        for name, f in sorted(self._flows.items()):
            if f.links or f.ways or f.move is not None or f.slow_since_ns is None:
                continue
            if self._now_ns - f.slow_since_ns < self.rules.slow_for_ns:
                continue
            if self._now_ns < max(self._cool_ns(f), f.wait_ns):
                self._hold(f, "REROUTE", "COOL_DOWN", name)
            elif self._steered(f, self._anywhere(f), "DELAY", name):
                f.slow_since_ns = None

    # ------------------------------------------------------------------------------------ failback

    def _fail_back(self) -> None:
        """Let flows return, some at a time, whose own path is well and has stayed so."""
        ready = [f for f in self._flows.values() if self._may_return(f)]
        if not ready:
            self._back_batch = 0
            return
        self._back_batch = max(self._back_batch, math.ceil(len(ready) / self.rules.failback_steps))
        if self._now_ns < self._back_ns + self.rules.failback_step_ns:
            return
        ready.sort(key=lambda f: (-f.bps, self._draw(f.live.flow_id)))
        moved = 0
        for f in ready:
            if moved == self._back_batch:
                break
            home = f.home
            if home is None:
                continue
            reason = self.wellness.reason(f.home_subject)
            links = f.ways[home].links
            before = self._loads.worst(each for each in f.links if each not in links)
            if self._after(f, links) > max(FULL, RELIEF * before):
                self._hold(f, "RESTORE", "NO_BETTER_PATH", reason)
            elif self._move(f, "RESTORE", home, "HEALED", reason):
                moved += 1
                self._back_ns = self._now_ns

    def _may_return(self, f: Flow) -> bool:
        way = None if f.home is None else f.ways.get(f.home)
        if way is None or f.move is not None or self._now_ns < max(f.wait_ns, f.home_from_ns):
            return False
        if f.exclusive and f.path != f.home and (f.ends, f.home) in self._options.ports:
            return False
        return self._options.grade(way).grade is Grade.WELL

    # ------------------------------------------------------------------------------------ rates

    def _hold_rates(self) -> None:
        """Hold flows to rates where an incast or tenants' shares call for it, and let them go."""
        flows = [
            f.live if f.live.hops else f.live._replace(hops=f.links) for _, f in sorted(self._flows.items())
        ]
        for wanted in self._rates.decide(self._now_ns, flows, self._may_hold):
            f = self._flows.get(wanted.flow_id)
            if f is None:
                continue
            limits = self._limits_of(f.host)
            why = self._ledger.why_no_rate(f.live.flow_id, f.host, limits, self._now_ns)
            if why is not None and wanted.action != "UNPACE":
                self._rates.refuse(wanted, self._now_ns)
                self._hold(f, wanted.action, why, wanted.reason)
                continue
            self._ledger.note_rate(f.live.flow_id, f.host, self._now_ns)
            self._say_rate(f, wanted, limits)

    def _may_hold(self, flow: LiveFlow, action: str) -> bool:
        limits = self._limits_of(flow.nic.partition("/")[0])
        return action in limits.allowed and flow.job not in limits.protected_jobs

    def _say_rate(self, f: Flow, wanted: WantedRate, limits: Limits) -> None:
        held = "let go" if wanted.action == "UNPACE" else f"held to {wanted.rate_bps / 1e6:.1f} Mbit/s"
        self._say(f, wanted.action, limits, {"kind": wanted.kind, "id": wanted.reason}, {
            "from_path": None, "to_path": None, "expires_at_ns": wanted.expires_at_ns,
            "rate_bps": None if wanted.action == "UNPACE" else wanted.rate_bps,
            "text": f"{f.live.nic} to {f.live.peer}: {held}, {wanted.kind} {wanted.reason}"[:500],
        })  # fmt: skip

    # ------------------------------------------------------------------------------------ what is said

    def _say(self, f: Flow, action: str, limits: Limits, reason: Record, more: Record) -> None:
        """Put a decision into the round."""
        self._round.decisions.append(Said(DECISIONS, f.host, {
            "decision_id": f"{self.shard}/{self.epoch}/{self._seq}", "shard": self.shard,
            "epoch": self.epoch, "seq": self._seq, "at_ns": self._now_ns, "host": f.host, "action": action,
            "flow_id": f.live.flow_id, "reason": reason, "config_version": limits.version,
            "signature": b"", **more,
        }))  # fmt: skip
        self._seq += 1

    def _hold(self, f: Flow, action: str, why: str, reason: str) -> None:
        self._round.held.append(Held(f.live.flow_id, action, why, reason))

    def _move(self, f: Flow, action: str, path: int, kind: str, reason: str, *, urgent: bool = False) -> bool:
        """Decide that a flow moves, where the limits let it."""
        name, limits, now_ns = f.live.flow_id, self._limits_of(f.host), self._now_ns
        if f.live.job in limits.protected_jobs:
            why: str | None = "PROTECTED"
        elif "MOVE" not in f.live.can:
            why = "NOT_MOVABLE"
        elif action not in limits.allowed:
            why = "NOT_ALLOWED"
        else:
            why = self._ledger.why_not(name, f.host, limits, len(self._flows), now_ns, urgent=urgent)
        if why is not None:
            self._hold(f, action, why, reason)
            return False
        self._ledger.note(name, f.host, now_ns)
        expires_ns = now_ns + self.rules.expires_ns
        self._say(f, action, limits, {"kind": kind, "id": reason}, {
            "from_path": f.path, "to_path": path, "rate_bps": None, "expires_at_ns": expires_ns,
            "text": f"{f.live.nic} to {f.live.peer}: from path {f.path} to {path}, {kind} {reason}"[:500],
        })  # fmt: skip
        via = {f.path, f.live.path} | (f.move.via if f.move is not None else set())
        f.move = Move(path, frozenset(via - {path}), expires_ns + self.rules.confirm_ns, self._seq - 1)
        f.cause = reason
        self._loads.add(f.links, f.weight, -1)
        f.path, f.way = path, f.ways.get(path, NOWHERE)
        if f.exclusive:
            self._options.ports.add((f.ends, path))
        self._loads.add(f.links, f.weight)
        return True
