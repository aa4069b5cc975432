"""Merges the rate limits of pacing and slices, and renews them as leases.

If both limit a flow, the lower rate applies. A limit is a lease that is renewed before it expires, so it ends
by itself if the policy process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.reasons import Reason
from schemas.records import (
    ActionOutcome,
    ActionReport,
    ContentionWindow,
    FlowAction,
    LinkQueues,
    ReasonKind,
    TenantSlice,
)
from streams.policy.rates.pacing import Pacing
from streams.policy.rates.pacing_receiver import PacingRules
from streams.policy.rates.rate_target import RateTarget
from streams.policy.rates.slices import SliceRules, Slices
from streams.runtime.flow_table import LiveFlow
from streams.runtime.units import NS_PER_MS, NS_PER_S


class WantedRate(NamedTuple):
    """A proposed rate limit for one flow, or the end of its limit."""

    flow_id: str
    action: FlowAction
    """PACE, SLICE, or UNPACE to end the limit."""
    rate_bps: int
    """Rate of the flow's frames, as flow reports count them; 0 with UNPACE."""
    kind: ReasonKind
    """INCAST or SLICE; DRAINED at the end of a PACE."""
    reason: Reason
    """Id of the contention window, or for a SLICE the tenant and link, or the link, that limits the flow."""
    expires_at_ns: int
    urgent: bool
    """True if the limit must be applied soon: until then, a queue may persist."""


@dataclass(frozen=True, slots=True)
class RateRules:
    """Lifetimes and renewal times of rate leases."""

    lease_ns: int = 2 * NS_PER_S
    renew_ns: int = 1 * NS_PER_S
    up_share: float = 0.03
    """A lease is updated before renewal if the wanted rate exceeds it by more than this share."""
    down_share: float = 0.01
    """A lease is updated before renewal if the wanted rate is below it by more than this share."""
    retry_ns: int = 500 * NS_PER_MS
    """Time after which a suppressed or failed limit is proposed again."""


@dataclass(slots=True)
class _Lease:
    rate_bps: int
    action: FlowAction
    reason: Reason
    published_ns: int
    in_force: bool = True
    """False if the last action report shows that the lease was not applied."""


DONE: Final = frozenset({ActionOutcome.APPLIED, ActionOutcome.DUPLICATE})
RENEWED: Final = frozenset(
    {ActionOutcome.OBSERVED, ActionOutcome.NO_FLOW, ActionOutcome.STALE, ActionOutcome.NOT_ALLOWED}
)
"""Outcomes after which a lease is renewed at the usual time, though it is not in force."""
IMMEDIATE: Final = frozenset({ActionOutcome.OLD_CONFIG, ActionOutcome.ENDED, ActionOutcome.REVERTED})
"""Outcomes after which a lease is published again at once."""


class Rates:
    """The rate limits of one shard's flows. `rate_of` returns a directed link's bit/s, 0 if unknown."""

    def __init__(
        self,
        rate_of: Callable[[str], int],
        *,
        pacing: PacingRules | None = None,
        slices: SliceRules | None = None,
        rules: RateRules | None = None,
    ) -> None:
        self.rules = rules or RateRules()
        self.pacing, self.slices = Pacing(rate_of, pacing), Slices(rate_of, slices)
        self._leases: dict[str, _Lease] = {}
        self._retry_ns: dict[str, int] = {}
        """Earliest time of the next lease of each flow whose limit was suppressed, ns."""

    def take_contention(self, record: ContentionWindow) -> None:
        """Pass a `ContentionWindow` of the shard to pacing."""
        self.pacing.take_contention(record)

    def take_queues(self, record: LinkQueues) -> None:
        """Pass a `LinkQueues` record of the shard to pacing."""
        self.pacing.take_queues(record)

    def take_slices(self, slices: Iterable[TenantSlice]) -> None:
        """Set the tenants' shares to the `ActuatorConfig.slices` in force."""
        self.slices.take_slices(slices)

    def take_action(self, record: ActionReport) -> None:
        """Apply an `ActionReport` on a PACE or SLICE of this epoch.

        The report shows whether the lease is in force. A lease that was refused is soon published again.
        """
        lease = self._leases.get(record["flow_id"])
        if lease is None or record["action"] != lease.action:
            return
        outcome = record["outcome"]
        lease.in_force = outcome in DONE
        if not lease.in_force and outcome not in RENEWED:
            wait_ns = 0 if outcome in IMMEDIATE else self.rules.retry_ns
            due_ns = record["at_ns"] + wait_ns
            lease.published_ns = min(lease.published_ns, due_ns - self.rules.renew_ns)

    def refuse(self, rate: WantedRate, now_ns: int) -> None:
        """Note that a limit was suppressed; the limit is proposed again after `retry_ns` if still needed."""
        self._leases.pop(rate.flow_id, None)
        self._retry_ns[rate.flow_id] = now_ns + self.rules.retry_ns

    def decide(
        self,
        now_ns: int,
        flows: Iterable[LiveFlow],
        is_allowed: Callable[[LiveFlow, FlowAction], bool] | None = None,
    ) -> list[WantedRate]:
        """Return the limits to publish at `now_ns`, fabric time: urgent limits first, then by flow.

        `is_allowed`: returns whether PACE or SLICE of a flow is allowed at all.
        """
        live = list(flows)
        sliced = self.slices.decide(now_ns, live, is_allowed)
        paced = self.pacing.decide(now_ns, live, is_allowed, self.slices.links, self._is_in_force)
        reported = {flow.flow_id for flow in live}
        for flow_id in [flow_id for flow_id in self._leases if flow_id not in reported]:
            del self._leases[flow_id]
        self._retry_ns = {
            flow_id: at_ns
            for flow_id, at_ns in self._retry_ns.items()
            if at_ns > now_ns and flow_id in reported
        }
        rates = self._update_leases(now_ns, paced, sliced)
        rates += self._end_leases(now_ns, paced.keys() | sliced.keys())
        rates.sort(key=lambda rate: (not rate.urgent, rate.flow_id))
        return rates

    def in_force(self) -> dict[str, tuple[FlowAction, int]]:
        """Return, by flow id, the action and the rate, bit/s, of each lease."""
        return {flow_id: (lease.action, lease.rate_bps) for flow_id, lease in sorted(self._leases.items())}

    def _is_in_force(self, flow_id: str) -> bool:
        """Return True unless action reports show that the flow's last lease was not applied."""
        lease = self._leases.get(flow_id)
        return lease is None or lease.in_force

    def _update_leases(
        self, now_ns: int, paced: Mapping[str, RateTarget], sliced: Mapping[str, RateTarget]
    ) -> list[WantedRate]:
        """Begin, change or renew leases according to the paced and sliced rates; return the due limits."""
        expires_ns, rates = now_ns + self.rules.lease_ns, []
        for flow_id in sorted(paced.keys() | sliced.keys()):
            action, target = _lower(paced.get(flow_id), sliced.get(flow_id))
            rate_bps, lease = max(1, round(target.rate_bps)), self._leases.get(flow_id)
            if not self._is_due(flow_id, lease, action, rate_bps, now_ns):
                continue
            fell = lease is None or rate_bps < lease.rate_bps * (1 - self.rules.down_share)
            in_force = lease is None or lease.in_force
            self._leases[flow_id] = _Lease(rate_bps, action, target.reason, now_ns, in_force)
            kind = ReasonKind.INCAST if action == FlowAction.PACE else ReasonKind.SLICE
            urgent = fell and target.urgent
            rates.append(WantedRate(flow_id, action, rate_bps, kind, target.reason, expires_ns, urgent))
        return rates

    def _is_due(
        self, flow_id: str, lease: _Lease | None, action: FlowAction, rate_bps: int, now_ns: int
    ) -> bool:
        rules = self.rules
        if lease is None:
            return flow_id not in self._retry_ns
        if now_ns - lease.published_ns >= rules.renew_ns or action != lease.action:
            return True
        return not (1 - rules.down_share) <= rate_bps / lease.rate_bps <= 1 + rules.up_share

    def _end_leases(self, now_ns: int, limited_ids: Iterable[str]) -> list[WantedRate]:
        """End the leases of all flows except `limited_ids`; return the ends to publish."""
        expires_ns, rates = now_ns + self.rules.lease_ns, []
        for flow_id in sorted(self._leases.keys() - limited_ids):
            lease = self._leases.pop(flow_id)
            kind = ReasonKind.DRAINED if lease.action == FlowAction.PACE else ReasonKind.SLICE
            rates.append(WantedRate(flow_id, FlowAction.UNPACE, 0, kind, lease.reason, expires_ns, False))
        return rates


def _lower(paced: RateTarget | None, sliced: RateTarget | None) -> tuple[FlowAction, RateTarget]:
    """Return the action and target of the lower rate. At least one target must be given; PACE wins a tie."""
    targets = [
        (action, target)
        for action, target in ((FlowAction.PACE, paced), (FlowAction.SLICE, sliced))
        if target is not None
    ]
    return min(targets, key=lambda pair: (pair[1].rate_bps, pair[0]))
