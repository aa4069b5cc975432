"""Paces the senders of an incast, so that no queue persists at the receiver's last link."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from schemas.ids import end_parts
from schemas.reasons import Reason
from schemas.records import ContentionKind, ContentionState, ContentionWindow, FlowAction, LinkQueues
from streams.policy.rates.pacing_feedback import FeedbackTable, PacingFeedbackRules
from streams.policy.rates.pacing_receiver import PacingRules, Receiver, Sender, Senders
from streams.policy.rates.rate_target import RateTarget
from streams.policy.rules import WINDOW_STALE_NS
from streams.runtime.flow_table import LiveFlow
from streams.runtime.units import NS_PER_MS, NS_PER_S

IsAllowed = Callable[[LiveFlow, FlowAction], bool]

UPDATE_NS: Final = 250 * NS_PER_MS
"""Length of time over which the mean delay of a contention window is taken."""
PACKET_BITS: Final = 12_000
"""Bits of a packet of 1,500 bytes."""
SHARE_MEMORY_NS: Final = 60 * NS_PER_S
"""Time for which a receiver's share of its link is kept for reuse after pacing ended."""
FELL_SHARE: Final = 0.98
"""A pace counts as lowered if it is below this share of the previous one."""


class _Delay(NamedTuple):
    """The mean delay at a link from `begin_ns` to `end_ns`."""

    begin_ns: int
    end_ns: int
    delay_ns: float
    bound_ns: float
    inferred: bool
    """True if it comes from `LinkQueues`, False if from a contention window."""


# A receiver's last link carries C bit/s. Its senders together get `share` of C, less the rate of small flows.
# Each gets the same pace p. With demands d, p over the senders that want more, plus min(d, p) over the rest,
# adds up to share C (max-min fair: Bertsekas and Gallager, Data Networks, 6.5). The share follows the delay
# at the link: additive increase, and multiplicative decrease by how far the delay exceeds its target:
#
#     share <- share + a dt                                delay <= target, and senders use what they have
#     share <- share (1 - min(b (1 - target / delay), m))  delay > target, though it had time to drain
#
# Swift does the same by round trips (Kumar et al., SIGCOMM 2020); here the delay of the link is inferred by
# hosts. Slowing senders before switches must queue is the idea of On-Ramp (Liu et al., NSDI 2021). As in
# Swift, the target grows with the number of senders: n of them in step queue n packets without any overload.
# An existing queue is drained in addition: until it is gone, senders get share (1 - min(delay / D, m)), and
# the queue has twice the time that this takes before the share is cut.
class Pacing:
    """Decides the paces of the senders of a shard's incasts. `rate_of` returns a link's bit/s, or 0."""

    def __init__(
        self,
        rate_of: Callable[[str], int],
        rules: PacingRules | None = None,
        feedback: PacingFeedbackRules | None = None,
    ) -> None:
        self.rules = rules or PacingRules()
        self._feedback = FeedbackTable(feedback)
        self._rate_of = rate_of
        self._windows: dict[str, ContentionWindow] = {}
        self._receivers: dict[str, Receiver] = {}
        self._delays: dict[str, _Delay] = {}
        self._past_shares: dict[str, tuple[float, int]] = {}

    # ------------------------------------------------------------------------------------ inputs

    def take_contention(self, record: ContentionWindow) -> None:
        """Note from a `ContentionWindow` which incasts are open."""
        link = record["link"]
        previous = self._windows.get(link)
        order = (record["opened_ns"], record["update"])
        if previous is not None and order <= (previous["opened_ns"], previous["update"]):
            return
        self._windows[link] = record
        if record["state"] != ContentionState.CLOSED and record["delay_ns"] > 0:
            end_ns = record["updated_ns"]
            self._take_delay(link, _Delay(end_ns - UPDATE_NS, end_ns, record["delay_ns"], 0.0, False))

    def take_queues(self, record: LinkQueues) -> None:
        """Note the link delays of a `LinkQueues` record, which may be one part of several."""
        begin_ns = record["window_start_ns"]
        end_ns = begin_ns + record["slot_ns"] * record["slots"]
        followed = {receiver.link for receiver in self._receivers.values()}
        if not followed:
            return
        for queue in record["links"]:
            link = queue["link"]
            if link in followed:
                ns_per_byte = 8e9 / (self._rate_of(link) or queue["rate_bps"] or 1e9)
                delay_ns = queue["depth_mean_bytes"] * ns_per_byte
                bound_ns = queue["bound_bytes"] * ns_per_byte
                self._take_delay(link, _Delay(begin_ns, end_ns, delay_ns, bound_ns, True))

    def _take_delay(self, link: str, delay: _Delay) -> None:
        previous = self._delays.get(link)
        if previous is not None:
            if delay.end_ns <= previous.end_ns:
                return
            if previous.inferred and not delay.inferred and delay.end_ns < previous.end_ns + UPDATE_NS:
                return
        self._delays[link] = delay

    # ------------------------------------------------------------------------------------ all receivers

    def decide(
        self,
        now_ns: int,
        flows: Iterable[LiveFlow],
        is_allowed: IsAllowed | None = None,
        sliced_links: Collection[str] = (),
        in_force: Callable[[str], bool] | None = None,
    ) -> dict[str, RateTarget]:
        """Return, by flow id, the pace of each flow that is to be paced at `now_ns`, fabric time.

        `is_allowed`: returns whether PACE of a flow is allowed. `sliced_links`: links that `Slices` divides
        among tenants. `in_force`: returns whether a flow's earlier pace is in force; only then does it have
        an effect to measure.
        """
        self._drop_stale_windows(now_ns)
        flows = list(flows)
        sampled = self._feedback.sample(now_ns, flows)
        incasts = self._incasts()
        if not incasts and not self._receivers:
            return {}
        flows_to: dict[str, list[LiveFlow]] = {}
        for flow in flows:
            flows_to.setdefault(flow.peer, []).append(flow)
        for nic, (link, window_id) in sorted(incasts.items()):
            if link not in sliced_links and not self._feedback.is_excluded(nic, now_ns):
                self._begin(nic, link, window_id, len(flows_to.get(nic, ())), now_ns)
        targets: dict[str, RateTarget] = {}
        for nic, receiver in sorted(self._receivers.items()):
            paces = None
            if receiver.link not in sliced_links:
                if in_force is not None:
                    self._check_in_force(nic, receiver, in_force, now_ns)
                to_nic = flows_to.get(nic, [])
                can_pace = {flow.flow_id for flow in to_nic if _can_pace(flow, is_allowed)}
                paces = self._step(receiver, to_nic, can_pace, nic in incasts, now_ns, sampled)
            if paces is None:
                self._end(nic, receiver, now_ns)
            else:
                targets |= paces
        return targets

    def _drop_stale_windows(self, now_ns: int) -> None:
        stale = [
            link
            for link, window in self._windows.items()
            if window["state"] == ContentionState.CLOSED or window["updated_ns"] <= now_ns - WINDOW_STALE_NS
        ]
        for link in stale:
            del self._windows[link]

    def _incasts(self) -> dict[str, tuple[str, str]]:
        """Return, by receiving NIC, the last link and the window id of each open incast."""
        incasts: dict[str, tuple[str, str]] = {}
        for _, window in sorted(self._windows.items()):
            if window["kind"] != ContentionKind.INCAST:
                continue
            peers = {flow["peer"] for flow in window["flows"]}
            for link in (window["link"], *window["links"], *window["candidates"]):
                nic = _receiver_of(link)
                if nic in peers or (not peers and link == window["link"]):
                    incasts.setdefault(nic, (link, window["window_id"]))
                    break
        return incasts

    def _begin(self, nic: str, link: str, window_id: str, flows: int, now_ns: int) -> None:
        """Begin to pace a receiver; if it is paced already, update its window id."""
        receiver = self._receivers.get(nic)
        if receiver is not None:
            receiver.window_id = window_id
            return
        rate_bps, first_share = self._rate_of(link), self.rules.first_share
        if not rate_bps:
            return
        share, ended_ns = self._past_shares.pop(nic, (first_share, now_ns))
        if now_ns - ended_ns >= SHARE_MEMORY_NS:
            share = first_share
        self._receivers[nic] = Receiver(
            link,
            rate_bps,
            window_id,
            min(share, first_share),
            self._feedback.begin(nic, rate_bps, flows, now_ns),
            self.rules,
            active_ns=now_ns,
            calm_since_ns=now_ns,
            raised_ns=now_ns,
            stepped_ns=now_ns,
            probe_ns=self.rules.probe_ns,
        )

    def _end(self, nic: str, receiver: Receiver, now_ns: int) -> None:
        """Stop pacing a receiver."""
        del self._receivers[nic]
        self._past_shares[nic] = (receiver.share, now_ns)
        self._feedback.end(nic, receiver.feedback, receiver.sending, now_ns)
        self._delays.pop(receiver.link, None)

    def _check_in_force(
        self, nic: str, receiver: Receiver, in_force: Callable[[str], bool], now_ns: int
    ) -> None:
        """Discard evidence while most paces are not in force: queues and rates do not show their effect.

        Paces are not in force in OBSERVE mode, or if actuators refuse them.
        """
        paced = [flow_id for flow_id, sender in receiver.senders.items() if sender.paced]
        unapplied = bool(paced) and 2 * sum(map(in_force, paced)) < len(paced)
        if unapplied or receiver.unapplied:
            receiver.reset(now_ns)
        if receiver.unapplied and not unapplied:
            receiver.feedback = self._feedback.begin(nic, receiver.rate_bps, receiver.sending, now_ns)
        receiver.unapplied = unapplied

    # ------------------------------------------------------------------------------------ one receiver

    def _step(
        self,
        receiver: Receiver,
        flows: list[LiveFlow],
        can_pace: set[str],
        has_incast: bool,
        now_ns: int,
        sampled: bool,
    ) -> dict[str, RateTarget] | None:
        """Return the new paces of a receiver's senders, or None if pacing should stop."""
        receiver.update_senders(flows)
        senders = receiver.classify(can_pace, has_incast, now_ns)
        members = senders.members
        if receiver.should_end(has_incast, now_ns) or (len(members) < 2 and not receiver.pace_bps):
            return None
        if not members:
            receiver.stepped_ns = now_ns
            return {}
        if not receiver.unapplied:
            self._follow_delay(receiver, senders.wanting, now_ns)
        receiver.jobs = frozenset(member.live.job for member in members if member.live.job)
        receiver.sending = sum(member.peak.bps(receiver.clock_ns) > 0 for member in members)
        if sampled and not receiver.unapplied:
            self._apply_feedback(receiver, members, now_ns)
            if receiver.feedback.ineffective:
                return None
        urgent = self._set_pace(receiver, senders, now_ns)
        receiver.stepped_ns = now_ns
        target = RateTarget(receiver.pace_bps, Reason.of_window(receiver.window_id), urgent)
        return {member.live.flow_id: target for member in members}

    def _apply_feedback(self, receiver: Receiver, members: list[Sender], now_ns: int) -> None:
        """Determine from the receive rate whether the paces are too low, and raise them."""
        delay, feedback = self._delays.get(receiver.link), receiver.feedback
        is_recent = delay is not None and now_ns - delay.end_ns < NS_PER_S
        queue_ns = delay.delay_ns if delay is not None and is_recent else 0.0
        last_raise_ns = self._adopt_raises(receiver, now_ns)
        used_bps, small_bps = self.rules.used_share * receiver.pace_bps, receiver.small_bps()
        any_at_pace = any(member.live.rate_bps >= used_bps for member in members)
        sending = sum(member.live.rate_bps > small_bps for member in members)
        feedback.step(
            now_ns,
            granted_bps=receiver.granted_share() * receiver.rate_bps,
            flows=receiver.sending,
            limited=any_at_pace or 2 * sending >= max(2, receiver.sending),
            queue_ns=queue_ns,
            over_target=receiver.excess_ns > 0,
            last_raise_ns=last_raise_ns,
        )

    def _adopt_raises(self, receiver: Receiver, now_ns: int) -> int:
        """Adopt recent pace increases at receivers of the same jobs; return the time of the last one, ns."""
        last_raise_ns = receiver.feedback.raised_ns
        for other in self._receivers.values():
            if other is receiver or not other.jobs & receiver.jobs:
                continue
            last_raise_ns = max(last_raise_ns, other.feedback.raised_ns)
            if now_ns - other.feedback.raised_ns < NS_PER_S:
                scale = receiver.sending / max(1, other.sending)
                receiver.feedback.adopt(other.feedback.oversubscription * scale, now_ns)
        return last_raise_ns

    def _follow_delay(self, receiver: Receiver, wanting: list[Sender], now_ns: int) -> None:
        """Adjust the share of the link for senders according to the link's newest queue delay."""
        rules, delay = self.rules, self._delays.get(receiver.link)
        if delay is None or delay.end_ns <= receiver.evaluated_ns:
            return
        receiver.evaluated_ns = delay.end_ns
        is_used = bool(wanting) or receiver.feedback.oversubscription > 1
        if not is_used or delay.begin_ns < receiver.changed_ns + rules.apply_ns:
            return
        target_ns = 1e3 * rules.target_us + len(wanting) * PACKET_BITS * 1e9 / receiver.rate_bps
        since_s = min((now_ns - receiver.raised_ns) / NS_PER_S, 1.0)
        receiver.raised_ns = now_ns
        if delay.delay_ns > max(target_ns, delay.bound_ns):
            self._drain(receiver, delay.delay_ns, target_ns, now_ns)
            return
        receiver.excess_ns, receiver.drained_by_ns = 0.0, None
        if receiver.share < rules.max_share:
            receiver.share = min(rules.max_share, receiver.share + rules.up_share_per_s * since_s)
        elif now_ns - receiver.calm_since_ns >= receiver.probe_ns:
            receiver.share += rules.probe_up_share_per_s * since_s

    def _drain(self, receiver: Receiver, delay_ns: float, target_ns: float, now_ns: int) -> None:
        """Grant a smaller share until a queue has drained; cut it further if draining takes too long."""
        rules = self.rules
        receiver.calm_since_ns, receiver.excess_ns = now_ns, delay_ns - target_ns
        if receiver.share > rules.max_share:
            receiver.share, receiver.changed_ns = rules.max_share, now_ns
            receiver.probe_ns = min(2 * receiver.probe_ns, rules.max_probe_ns)
        if receiver.drained_by_ns is not None and now_ns >= receiver.drained_by_ns:
            cut = min(rules.beta * (1 - target_ns / delay_ns), rules.max_cut)
            if not receiver.feedback.reduce(cut, now_ns):
                receiver.share = max(rules.min_share, receiver.share * (1 - cut))
            receiver.changed_ns = now_ns
            receiver.drained_by_ns = None
        if receiver.drained_by_ns is None:
            drain_ns = round(2 * delay_ns / (1 - receiver.granted_share()))
            receiver.drained_by_ns = now_ns + rules.apply_ns + drain_ns

    def _set_pace(self, receiver: Receiver, senders: Senders, now_ns: int) -> bool:
        """Set the common pace of a receiver's senders; return True if the pace fell or a sender joined."""
        wanting, joined = senders.wanting, senders.joined
        # A single sender that wants more does not alternate with any other.
        oversubscription = receiver.feedback.oversubscription if len(wanting) != 1 else 1.0
        if not wanting and oversubscription <= 1:
            return joined
        pace_bps = self._even_pace_bps(receiver, senders)
        if oversubscription > 1:
            pace_bps = min(receiver.rate_bps, oversubscription * pace_bps)
        elif receiver.pace_bps:
            rise = self.rules.rise_share_per_s * (now_ns - receiver.stepped_ns) / NS_PER_S
            pace_bps = min(pace_bps, receiver.pace_bps + rise * receiver.rate_bps)
        fell = joined or pace_bps < FELL_SHARE * receiver.pace_bps
        if fell:
            receiver.changed_ns = now_ns
        receiver.pace_bps = pace_bps
        return fell

    def _even_pace_bps(self, receiver: Receiver, senders: Senders) -> float:
        """Return the pace that splits the granted share evenly among the senders, bit/s."""
        members, wanting, clock_ns = senders.members, senders.wanting, receiver.clock_ns
        heavy = sum(sender.peak.bps(clock_ns) > senders.small_bps for sender in senders.others)
        granted_bps = receiver.granted_share() * receiver.rate_bps
        others_bps = sum(sender.live.rate_bps for sender in senders.others)
        even_bps = granted_bps * len(members) / (len(members) + heavy)
        capacity_bps = max(granted_bps - others_bps, even_bps)
        if not wanting:
            return capacity_bps / max(1, receiver.sending)
        wanting_ids = {id(sender) for sender in wanting}
        modest = sorted(
            self.rules.growth * sender.peak.bps(clock_ns)
            for sender in members
            if id(sender) not in wanting_ids
        )
        return _max_min_pace(capacity_bps, modest, len(wanting))


def _can_pace(flow: LiveFlow, is_allowed: IsAllowed | None) -> bool:
    return "PACE" in flow.can and (is_allowed is None or is_allowed(flow, FlowAction.PACE))


def _max_min_pace(capacity_bps: float, modest: list[float], greedy: int) -> float:
    """Return the pace p, bit/s, at which all senders together use the capacity.

    `greedy` senders, at least one, send at p. The others send at min(p, demand); `modest` has their demands,
    ascending.
    """
    left_bps, count = capacity_bps, greedy + len(modest)
    for demand_bps in modest:
        if demand_bps >= left_bps / count:
            break
        left_bps -= demand_bps
        count -= 1
    return left_bps / count


def _receiver_of(link: str) -> str:
    """Return the far end of a directed link in the format of a NIC's name, even if it is a switch port."""
    return "/".join(end_parts(link.rpartition(">")[2]))
