"""The state of one paced receiver: its senders, its share of the link, and the evidence about its queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from streams.policy.rates.pacing_feedback import PacingFeedback
from streams.policy.rates.rate_target import RecentMax
from streams.runtime.flow_table import LiveFlow
from streams.runtime.units import NS_PER_MS, NS_PER_S


@dataclass(frozen=True, slots=True)
class PacingRules:
    """Delay targets and time constants of pacing."""

    target_us: float = 100.0
    """Accepted delay at the link, us, in addition to one packet of each sender."""
    first_share: float = 0.93
    """Share of the link's rate that senders get at first."""
    max_share: float = 0.97
    min_share: float = 0.6
    up_share_per_s: float = 0.02
    """Additive increase of the share: a in the comment above `Pacing`."""
    beta: float = 0.3
    """Factor of the multiplicative decrease: b in the comment above `Pacing`."""
    max_cut: float = 0.2
    """Largest cut of the share at once: m in the comment above `Pacing`."""
    drain_ns: int = 500 * NS_PER_MS
    """Time scale of draining a queue: D in the comment above `Pacing`."""
    small_share: float = 0.25
    """A flow counts as small, and is not paced, below this part of an even share of the link."""
    max_small_share: float = 0.05
    """A flow above this share of the link's rate never counts as small."""
    used_share: float = 0.75
    """A flow counts as using its pace if its rate is at least this share of it."""
    memory_ns: int = 3 * NS_PER_S
    """A flow that used its pace within this time wants more."""
    rise_share_per_s: float = 0.2
    """Most that a pace rises per second if other senders become idle, as a share of the link's rate."""
    apply_ns: int = 150 * NS_PER_MS
    """Time from a change of paces until it affects queues."""
    growth: float = 1.1
    """Demand of a sender that does not use its pace, as a multiple of its highest recent rate."""
    keep_ns: int = 10 * NS_PER_S
    """Time for which paces stay while no flow sends, so that they are in force when the incast repeats."""
    alone_share: float = 0.05
    """A sender is alone while all others send less than this share of the link's rate."""
    release_ns: int = 5 * NS_PER_S
    """Sending time after which pacing ends if paces limit no sender."""
    probe_ns: int = 60 * NS_PER_S
    """Time without a queue after which the share rises beyond the link's rate, to test whether paces still
    limit any sender. It doubles each time that a queue results."""
    max_probe_ns: int = 600 * NS_PER_S
    probe_share: float = 1.05
    probe_up_share_per_s: float = 0.04


@dataclass(slots=True, eq=False)
class Sender:
    """The rates and the pace of one flow to a receiver."""

    live: LiveFlow
    peak: RecentMax
    paced: bool = False
    used_ns: int = 0
    """Last time when the flow used its pace, on the receiver's clock (`Receiver.clock_ns`)."""


class Senders(NamedTuple):
    """The senders of one receiver in one step, by whether they are paced."""

    members: list[Sender]
    """Senders that are paced."""
    others: list[Sender]
    """Senders that are not paced: small ones, and those that cannot be paced."""
    wanting: list[Sender]
    """Members that used their pace recently."""
    small_bps: float
    """Rate below which a sender is not paced."""
    joined: bool
    """True if one of the members is newly paced."""


@dataclass(slots=True)
class Receiver:
    """One NIC with an incast on its last link, the paces of its senders and the delays of the link."""

    link: str
    rate_bps: int
    window_id: str
    share: float
    feedback: PacingFeedback
    rules: PacingRules
    clock_ns: int = 0
    """The receiver's clock: it runs only while a flow sends, so that observations do not age in pauses."""
    pace_bps: float = 0.0
    senders: dict[str, Sender] = field(default_factory=dict)
    changed_ns: int = 0
    """Last time when paces fell; queues from before are not evaluated."""
    evaluated_ns: int = 0
    """End of the time that the last evaluated delay covers, ns."""
    excess_ns: float = 0.0
    """Amount by which the last evaluated delay exceeded its target."""
    drained_by_ns: int | None = None
    """Time by which the current queue should have drained; None without a queue."""
    raised_ns: int = 0
    active_ns: int = 0
    """Last time when a flow sent or an incast was open."""
    binding_ns: int = 0
    """Last time when the paces limited a sender that was not alone, on the receiver's clock."""
    calm_since_ns: int = 0
    """Last time when the delay was above its target."""
    probe_ns: int = 0
    stepped_ns: int = 0
    jobs: frozenset[str] = frozenset()
    sending: int = 0
    """Number of the paced flows that sent recently."""
    unapplied: bool = False
    """True if the published paces are not in force."""

    def reset(self, now_ns: int) -> None:
        """Discard the evidence about queues before `now_ns`."""
        self.excess_ns, self.drained_by_ns = 0.0, None
        self.evaluated_ns = self.changed_ns = now_ns
        self.calm_since_ns = self.raised_ns = now_ns

    def update_senders(self, flows: list[LiveFlow]) -> None:
        """Update the senders' rates from the newest reports of the flows."""
        reported = {flow.flow_id for flow in flows}
        for flow_id in [flow_id for flow_id in self.senders if flow_id not in reported]:
            del self.senders[flow_id]
        for flow in flows:
            sender = self.senders.get(flow.flow_id)
            if sender is None:
                peak = RecentMax(self.rules.memory_ns // 2, self.clock_ns)
                sender = self.senders[flow.flow_id] = Sender(flow, peak)
            elif sender.live is flow:
                continue
            sender.live = flow
            sender.peak.add(flow.rate_bps, self.clock_ns)
            if self.pace_bps and flow.rate_bps >= self.rules.used_share * self.pace_bps:
                sender.used_ns = self.clock_ns

    def classify(self, can_pace: set[str], has_incast: bool, now_ns: int) -> Senders:
        """Split the senders into paced and other senders; update the receiver's clock and activity times."""
        small_bps = self.small_bps()
        members: list[Sender] = []
        others: list[Sender] = []
        for flow_id, sender in self.senders.items():
            is_heavy = sender.paced or sender.peak.bps(self.clock_ns) > small_bps
            (members if is_heavy and flow_id in can_pace else others).append(sender)
        any_sends = any(sender.live.rate_bps > small_bps for sender in members)
        if any_sends:
            self.clock_ns += now_ns - self.stepped_ns
        if has_incast or any_sends:
            self.active_ns = now_ns
        new = [sender for sender in members if not sender.paced]
        for sender in new:
            sender.paced, sender.used_ns = True, self.clock_ns
        senders = Senders(members, others, self._wanting(members), small_bps, bool(new))
        if self._is_binding(senders):
            self.binding_ns = self.clock_ns
        return senders

    def _wanting(self, members: list[Sender]) -> list[Sender]:
        """Return the paced senders that recently used their full pace and could use a higher one."""
        oldest_ns = self.clock_ns - self.rules.memory_ns
        return [sender for sender in members if sender.used_ns >= oldest_ns]

    def _is_binding(self, senders: Senders) -> bool:
        """Return True if the paces limit a sender, and the receiver's other flows are not negligible."""
        if len(senders.wanting) != 1:
            return bool(senders.wanting)
        rest = [sender for sender in (*senders.members, *senders.others) if sender not in senders.wanting]
        rest_bps = sum(sender.peak.bps(self.clock_ns) for sender in rest)
        return rest_bps > self.rules.alone_share * self.rate_bps

    def small_bps(self) -> float:
        """Return the rate below which a flow is not paced, bit/s."""
        sending = sum(sender.peak.bps(self.clock_ns) > 0 for sender in self.senders.values())
        share = min(self.rules.small_share / max(1, sending), self.rules.max_small_share)
        return self.rate_bps * share

    def should_end(self, has_incast: bool, now_ns: int) -> bool:
        """Return True if pacing of the receiver is no longer needed."""
        rules = self.rules
        if has_incast:
            return False
        if now_ns - self.active_ns >= rules.keep_ns or self.share >= rules.probe_share:
            return True
        return self.clock_ns - self.binding_ns >= rules.release_ns

    def granted_share(self) -> float:
        """Return the share of the link, 0 to 1, that the senders may use now."""
        return self.share * (1 - min(self.excess_ns / self.rules.drain_ns, self.rules.max_cut))
