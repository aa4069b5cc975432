"""Senders that meet at a receiver's last link: to which rate each is held so that no queue stands there.

In: `ContentionWindow`s, `LinkQueues`, the flows as of now. Out: the paces wanted, by flow. Pure: times are
the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from streams.policy.pacing_feedback import FeedbackTable, PacingFeedback, PacingFeedbackRules
from streams.policy.rate_target import Peak, Target
from streams.runtime.flow_table import LiveFlow

__all__ = ["Pacing", "PacingRules"]

Record = dict[str, Any]

MS: Final = 1_000_000
S: Final = 1_000 * MS
WINDOW_STALE_NS: Final = 5 * S
"""A window that nobody told of for so long stands no more; it is told anew each second."""
UPDATE_NS: Final = 250 * MS
"""Time that a window's mean delay is of."""
PACKET_BITS: Final = 12_000
REMEMBERED_NS: Final = 60 * S
"""A receiver's share is remembered for so long after it was let go."""


@dataclass(frozen=True, slots=True)
class PacingRules:
    """What pacing aims at, and how quickly."""

    target_us: float = 100.0
    """us that packets may wait at the link, beside one packet of each sender."""
    first_share: float = 0.93
    """Share of the link's rate that senders are given at first."""
    most_share: float = 0.97
    least_share: float = 0.6
    up_share_per_s: float = 0.02
    """Additive increase."""
    beta: float = 0.3
    most_cut: float = 0.2
    """Multiplicative decrease, as in the derivation below."""
    drain_ns: int = 500 * MS
    """D of the derivation below."""
    small_share: float = 0.25
    """Part of an even share of the link below which a flow is left alone."""
    small_most_share: float = 0.05
    """And share of the link's rate above which none is."""
    used_share: float = 0.75
    """Share of its pace from which on a flow uses it."""
    memory_ns: int = 3 * S
    """A flow that used its pace within this wants more."""
    rise_share_per_s: float = 0.2
    """Share of the link's rate by which one pace rises in a second, where other senders have gone quiet."""
    apply_ns: int = 150 * MS
    """From a change until queues show it."""
    growth: float = 1.1
    """A sender that does not use its pace is taken to want so much times its highest rate of late."""
    keep_ns: int = 10 * S
    """Paces are kept for so long while nobody sends: the next round of an incast finds them in force."""
    alone_share: float = 0.05
    """A sender is alone while all others send less than this share of the link's rate."""
    release_ns: int = 5 * S
    """Until flows that do not use their paces are let go."""
    probe_ns: int = 60 * S
    """Calm time after which the share is raised beyond the link's rate, to see whether paces still bind;
    twice as long each time that a queue comes of it."""
    probe_most_ns: int = 600 * S
    probe_share: float = 1.05
    probe_up_share_per_s: float = 0.04


class _Delay(NamedTuple):
    """What packets waited at a link, in the mean from `begin_ns` to `end_ns`."""

    begin_ns: int
    end_ns: int
    delay_ns: float
    bound_ns: float
    inferred: bool
    """Whether `LinkQueues` tells it; else a window does."""


@dataclass(slots=True, eq=False)
class _Sender:
    """One flow to a receiver."""

    live: LiveFlow
    peak: Peak
    paced: bool = False
    used_ns: int = 0
    """When it last used all of its pace, by the receiver's clock."""


@dataclass(slots=True)
class _Receiver:
    """One NIC whose last link has an incast."""

    link: str
    rate_bps: int
    window_id: str
    share: float
    effect: PacingFeedback
    clock_ns: int = 0
    """Runs while somebody sends: what was so in the last round is so after a pause."""
    pace_bps: float = 0.0
    senders: dict[str, _Sender] = field(default_factory=dict)
    changed_ns: int = 0
    """When senders were last slowed: what queues showed before is no evidence."""
    heard_ns: int = 0
    """End of the delay last judged."""
    over_ns: float = 0.0
    """By how much that was above the target."""
    drained_ns: int | None = None
    """When the queue that stands should be gone; None: none does."""
    raised_ns: int = 0
    active_ns: int = 0
    """When somebody last sent, or an incast was told of."""
    bound_ns: int = 0
    """When the paces last held back a sender that is not alone, by its clock."""
    calm_ns: int = 0
    """When a queue was last above the target."""
    probe_ns: int = 0
    stepped_ns: int = 0
    jobs: frozenset[str] = frozenset()
    sending: int = 0
    """How many of its flows sent of late."""
    idle: bool = False
    """Whether its paces are told but not in force."""


# A receiver's last link carries C bit/s. Its senders together are let `share` of that, less what small flows
# take, and each gets the same pace p, so that with demands d: sum over who wants more of p, plus sum over the
# others of min(d, p), equals share C (max-min fair: Bertsekas and Gallager, Data Networks, 6.5). The share
# follows the delay at the link, additive up, multiplicative down by how far the delay is above its target
#
#     share <- share + a dt                                delay <= target, and senders use what they have
#     share <- share (1 - min(b (1 - target / delay), m))  delay > target, though it had time to drain
#
# as Swift does by round trips (Kumar et al., SIGCOMM 2020), here by what hosts infer of the link; that a host
# holds back senders before switches have to queue is On-Ramp's idea (Liu et al., NSDI 2021). The target grows
# with the number of senders, as Swift's: n of them in step queue n packets at no overload at all. A queue
# that stands already is drained beside that: until it is gone senders get share (1 - min(delay / D, m)), and
# it has twice the time that this takes before the share is blamed.
class Pacing:
    """The incasts of one shard. `rate_of`: a directed link's bit/s, 0 where it is not known."""

    def __init__(
        self, rate_of: Callable[[str], int], rules: PacingRules | None = None,
        effect: PacingFeedbackRules | None = None,
    ) -> None:  # fmt: skip
        self.rules = rules or PacingRules()
        self._effects = FeedbackTable(effect)
        self._rate_of = rate_of
        self._windows: dict[str, Record] = {}
        self._receivers: dict[str, _Receiver] = {}
        self._delays: dict[str, _Delay] = {}
        self._past: dict[str, tuple[float, int]] = {}

    def take_contention(self, record: Record) -> None:
        """Take a `ContentionWindow`."""
        link = record["link"]
        known = self._windows.get(link)
        order = (record["opened_ns"], record["update"])
        if known is not None and order <= (known["opened_ns"], known["update"]):
            return
        self._windows[link] = record
        if record["state"] != "CLOSED" and record["delay_ns"] > 0:
            end_ns = record["updated_ns"]
            self._hear(link, _Delay(end_ns - UPDATE_NS, end_ns, record["delay_ns"], 0.0, False))

    def take_queues(self, record: Record) -> None:
        """Take a part of a `LinkQueues`."""
        begin_ns = record["window_start_ns"]
        end_ns = begin_ns + record["slot_ns"] * record["slots"]
        followed = {receiver.link for receiver in self._receivers.values()}
        if not followed:
            return
        for queue in record["links"]:
            link = queue["link"]
            if link in followed:
                ns_per_byte = 8e9 / (self._rate_of(link) or queue["rate_bps"] or 1e9)
                self._hear(link, _Delay(begin_ns, end_ns, queue["depth_mean_bytes"] * ns_per_byte,
                                        queue["bound_bytes"] * ns_per_byte, True))  # fmt: skip

    def _hear(self, link: str, delay: _Delay) -> None:
        known = self._delays.get(link)
        if known is not None:
            if delay.end_ns <= known.end_ns:
                return
            if known.inferred and not delay.inferred and delay.end_ns < known.end_ns + UPDATE_NS:
                return
        self._delays[link] = delay

    def decide(
        self, now_ns: int, flows: Iterable[LiveFlow], may: Callable[[LiveFlow, str], bool] | None = None,
        shared: Collection[str] = (), held: Callable[[str], bool] | None = None,
    ) -> dict[str, Target]:  # fmt: skip
        """Return the paces wanted at `now_ns`, fabric time, by flow; a flow that is not named is let go.
        `may`: whether PACE of a flow is allowed; `shared`: links that `Slices` shares out; `held`: whether a
        flow is held to what was wanted before, since only then does it show what came of that."""
        for link in [
            link for link, window in self._windows.items()
            if window["state"] == "CLOSED" or window["updated_ns"] <= now_ns - WINDOW_STALE_NS
        ]:  # fmt: skip
            del self._windows[link]
        flows = list(flows)
        sampled = self._effects.sample(now_ns, flows)
        told = self._incasts()
        if not told and not self._receivers:
            return {}
        to: dict[str, list[LiveFlow]] = {}
        for flow in flows:
            to.setdefault(flow.peer, []).append(flow)
        for nic, (link, window) in sorted(told.items()):
            if link not in shared and not self._effects.alone(nic, now_ns):
                self._begin(nic, link, window, len(to.get(nic, ())), now_ns)
        found: dict[str, Target] = {}
        for nic, receiver in sorted(self._receivers.items()):
            able = {
                flow.flow_id for flow in to.get(nic, ())
                if "PACE" in flow.can and (may is None or may(flow, "PACE"))
            }  # fmt: skip
            paces = None
            if receiver.link not in shared:
                if held is not None:
                    self._heed(nic, receiver, held, now_ns)
                paces = self._step(receiver, to.get(nic, []), able, nic in told, now_ns, sampled)
            if paces is None:
                del self._receivers[nic]
                self._past[nic] = (receiver.share, now_ns)
                self._effects.end(nic, receiver.effect, receiver.sending, now_ns)
                self._delays.pop(receiver.link, None)
            else:
                found |= paces
        return found

    def _incasts(self) -> dict[str, tuple[str, str]]:
        """Return receiving NIC to last link and window of the incasts that stand."""
        found: dict[str, tuple[str, str]] = {}
        for _, window in sorted(self._windows.items()):
            if window["kind"] == "INCAST":
                peers = {flow["peer"] for flow in window["flows"]}
                for link in (window["link"], *window["links"], *window["candidates"]):
                    nic = _receiver_of(link)
                    if nic in peers or (not peers and link == window["link"]):
                        found.setdefault(nic, (link, window["window_id"]))
                        break
        return found

    def _begin(self, nic: str, link: str, window_id: str, flows: int, now_ns: int) -> None:
        receiver = self._receivers.get(nic)
        if receiver is not None:
            receiver.window_id = window_id
            return
        rate_bps = self._rate_of(link)
        if not rate_bps:
            return
        share, let_go_ns = self._past.pop(nic, (self.rules.first_share, now_ns))
        if now_ns - let_go_ns >= REMEMBERED_NS:
            share = self.rules.first_share
        self._receivers[nic] = _Receiver(
            link, rate_bps, window_id, min(share, self.rules.first_share),
            self._effects.begin(nic, rate_bps, flows, now_ns), active_ns=now_ns, calm_ns=now_ns,
            raised_ns=now_ns, stepped_ns=now_ns, probe_ns=self.rules.probe_ns,
        )  # fmt: skip

    def _heed(self, nic: str, r: _Receiver, held: Callable[[str], bool], now_ns: int) -> None:
        """See whether the senders' paces are in force: in OBSERVE, or where actuators refuse them, what the
        link and the receiver show is not their effect."""
        paced = [name for name, sender in r.senders.items() if sender.paced]
        idle = bool(paced) and 2 * sum(map(held, paced)) < len(paced)
        if idle or r.idle:
            r.over_ns, r.drained_ns, r.heard_ns, r.changed_ns = 0.0, None, now_ns, now_ns
            r.calm_ns = r.raised_ns = now_ns
        if r.idle and not idle:
            r.effect = self._effects.begin(nic, r.rate_bps, r.sending, now_ns)
        r.idle = idle

    # ------------------------------------------------------------------------------------ one receiver

    def _step(
        self, r: _Receiver, flows: list[LiveFlow], able: set[str], incast: bool, now_ns: int, sampled: bool
    ) -> dict[str, Target] | None:  # fmt: skip
        """Return the paces of a receiver's senders, None where they are to be let go."""
        self._look(r, flows)
        small_bps = self._small_bps(r)
        members: list[_Sender] = []
        others: list[_Sender] = []
        for name, sender in r.senders.items():
            heavy = sender.paced or sender.peak.bps(r.clock_ns) > small_bps
            (members if heavy and name in able else others).append(sender)
        sends = any(sender.live.rate_bps > small_bps for sender in members)
        if sends:
            r.clock_ns += now_ns - r.stepped_ns
        if incast or sends:
            r.active_ns = now_ns
        joined = False
        for sender in members:
            if not sender.paced:
                sender.paced, sender.used_ns = True, r.clock_ns
                joined = True
        wanting = [each for each in members if r.clock_ns - each.used_ns <= self.rules.memory_ns]
        rest_bps = sum(each.peak.bps(r.clock_ns) for each in (*members, *others) if each not in wanting)
        if len(wanting) > 1 or (wanting and rest_bps > self.rules.alone_share * r.rate_bps):
            r.bound_ns = r.clock_ns
        if self._drained(r, incast, now_ns) or (len(members) < 2 and not r.pace_bps):
            return None
        if not members:
            r.stepped_ns = now_ns
            return {}
        if not r.idle:
            self._follow(r, wanting, now_ns)
        r.jobs = frozenset(each.live.job for each in members if each.live.job)
        r.sending = sum(each.peak.bps(r.clock_ns) > 0 for each in members)
        if sampled and not r.idle:
            self._judge(r, members, now_ns)
            if r.effect.useless:
                return None
        urgent = self._set_pace(r, members, wanting, others, small_bps, joined, now_ns)
        r.stepped_ns = now_ns
        return {each.live.flow_id: Target(r.pace_bps, r.window_id, urgent) for each in members}

    def _judge(self, r: _Receiver, members: list[_Sender], now_ns: int) -> None:
        """Let what the receiver takes in tell whether the pace is too tight."""
        delay = self._delays.get(r.link)
        queue_ns = delay.delay_ns if delay is not None and now_ns - delay.end_ns < S else 0.0
        small_bps = self._small_bps(r)
        others = [each for each in self._receivers.values() if each is r or each.jobs & r.jobs]
        others_ns = max(each.effect.raised_ns for each in others)
        for each in others:
            if each is not r and now_ns - each.effect.raised_ns < S:
                r.effect.join(each.effect.turns * r.sending / max(1, each.sending), now_ns)
        r.effect.step(
            now_ns, given_bps=self._given(r) * r.rate_bps, flows=r.sending, queue_ns=queue_ns,
            over=r.over_ns > 0, others_ns=others_ns,
            limited=any(each.live.rate_bps >= self.rules.used_share * r.pace_bps for each in members)
            or 2 * sum(each.live.rate_bps > small_bps for each in members) >= max(2, r.sending),
        )  # fmt: skip

    def _look(self, r: _Receiver, flows: list[LiveFlow]) -> None:
        """Bring the receiver's senders up to date."""
        here = {flow.flow_id for flow in flows}
        for name in [name for name in r.senders if name not in here]:
            del r.senders[name]
        for flow in flows:
            sender = r.senders.get(flow.flow_id)
            if sender is None:
                sender = r.senders[flow.flow_id] = _Sender(flow, Peak(self.rules.memory_ns // 2, r.clock_ns))
            elif sender.live is flow:
                continue
            sender.live = flow
            sender.peak.hear(flow.rate_bps, r.clock_ns)
            if r.pace_bps and flow.rate_bps >= self.rules.used_share * r.pace_bps:
                sender.used_ns = r.clock_ns

    def _small_bps(self, r: _Receiver) -> float:
        """Return the rate below which a flow is left alone."""
        sending = sum(sender.peak.bps(r.clock_ns) > 0 for sender in r.senders.values())
        return r.rate_bps * min(self.rules.small_share / max(1, sending), self.rules.small_most_share)

    def _drained(self, r: _Receiver, incast: bool, now_ns: int) -> bool:
        """Whether the senders are to be let go."""
        rules = self.rules
        if incast:
            return False
        if now_ns - r.active_ns >= rules.keep_ns or r.share >= rules.probe_share:
            return True
        return r.clock_ns - r.bound_ns >= rules.release_ns

    def _follow(self, r: _Receiver, wanting: list[_Sender], now_ns: int) -> None:
        """Let the share follow the delay at the link."""
        rules, delay = self.rules, self._delays.get(r.link)
        if delay is None or delay.end_ns <= r.heard_ns:
            return
        r.heard_ns = delay.end_ns
        if not (wanting or r.effect.turns > 1) or delay.begin_ns < r.changed_ns + rules.apply_ns:
            return
        target_ns = 1e3 * rules.target_us + len(wanting) * PACKET_BITS * 1e9 / r.rate_bps
        since_s = min((now_ns - r.raised_ns) / S, 1.0)
        r.raised_ns = now_ns
        if delay.delay_ns > max(target_ns, delay.bound_ns):
            self._over(r, delay.delay_ns, target_ns, now_ns)
            return
        r.over_ns, r.drained_ns = 0.0, None
        if r.share < rules.most_share:
            r.share = min(rules.most_share, r.share + rules.up_share_per_s * since_s)
        elif now_ns - r.calm_ns >= r.probe_ns:
            r.share += rules.probe_up_share_per_s * since_s

    def _over(self, r: _Receiver, delay_ns: float, target_ns: float, now_ns: int) -> None:
        """Let a queue drain; where it should have, give less."""
        rules = self.rules
        r.calm_ns, r.over_ns = now_ns, delay_ns - target_ns
        if r.share > rules.most_share:
            r.share, r.changed_ns = rules.most_share, now_ns
            r.probe_ns = min(2 * r.probe_ns, rules.probe_most_ns)
        if r.drained_ns is not None and now_ns >= r.drained_ns:
            cut = min(rules.beta * (1 - target_ns / delay_ns), rules.most_cut)
            if not r.effect.lower(cut, now_ns):
                r.share = max(rules.least_share, r.share * (1 - cut))
            r.changed_ns = now_ns
            r.drained_ns = None
        if r.drained_ns is None:
            r.drained_ns = now_ns + rules.apply_ns + round(2 * delay_ns / (1 - self._given(r)))

    def _given(self, r: _Receiver) -> float:
        """Return the share of the link that senders get now."""
        return r.share * (1 - min(r.over_ns / self.rules.drain_ns, self.rules.most_cut))

    def _set_pace(
        self, r: _Receiver, members: list[_Sender], wanting: list[_Sender], others: list[_Sender],
        small_bps: float, joined: bool, now_ns: int,
    ) -> bool:  # fmt: skip
        """Divide the share; return whether the pace fell, or somebody joined."""
        turns = r.effect.turns if len(wanting) != 1 else 1.0  # who alone wants more takes turns with nobody
        if not wanting and turns <= 1:
            return joined
        heavy = sum(sender.peak.bps(r.clock_ns) > small_bps for sender in others)
        whole_bps = self._given(r) * r.rate_bps
        taken_bps = sum(sender.live.rate_bps for sender in others)
        room_bps = max(whole_bps - taken_bps, whole_bps * len(members) / (len(members) + heavy))
        wants = {id(sender) for sender in wanting}
        modest = sorted(
            self.rules.growth * sender.peak.bps(r.clock_ns) for sender in members if id(sender) not in wants
        )
        pace_bps = _level(room_bps, modest, len(wanting)) if wanting else room_bps / max(1, r.sending)
        if turns > 1:
            pace_bps = min(r.rate_bps, turns * pace_bps)
        if r.pace_bps and turns <= 1:
            rise = self.rules.rise_share_per_s * (now_ns - r.stepped_ns) / S
            pace_bps = min(pace_bps, r.pace_bps + rise * r.rate_bps)
        fell = joined or pace_bps < 0.98 * r.pace_bps
        if fell:
            r.changed_ns = now_ns
        r.pace_bps = pace_bps
        return fell


def _level(room_bps: float, modest: list[float], greedy: int) -> float:
    """Return the pace p at which `greedy` senders at p and the others at min(p, demand) fill the room.
    `modest`: the others' demands, ascending; `greedy` is above 0."""
    left, over = room_bps, greedy + len(modest)
    for demand_bps in modest:
        if demand_bps >= left / over:
            break
        left -= demand_bps
        over -= 1
    return left / over


def _receiver_of(link: str) -> str:
    """Return the NIC at the far end of a directed link, if one is there."""
    return "/".join(link.rpartition(">")[2].rpartition(":")[::2])
