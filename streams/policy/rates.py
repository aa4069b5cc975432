"""Which flows are held to which rate: what pacing and slices want, merged and told as leases.

In: what `Pacing` and `Slices` take, the flows as of now. Out: `WantedRate`s, each to be told as a decision. A
flow that both want held gets the lower rate. A lease is told anew in time, so that what is held by a policy
that has died is let go. Pure: times are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from streams.policy.pacing import Pacing, PacingRules
from streams.policy.rate_target import Target
from streams.policy.slices import SliceRules, Slices
from streams.runtime.flow_table import LiveFlow

__all__ = ["RateRules", "Rates", "WantedRate"]

Record = dict[str, Any]

MS: Final = 1_000_000
S: Final = 1_000 * MS


class WantedRate(NamedTuple):
    """What one flow is to be held to."""

    flow_id: str
    action: str
    """PACE, SLICE; UNPACE: let go."""
    rate_bps: int
    """Of its frames, as flow reports count them; 0 with UNPACE."""
    kind: str
    """INCAST, SLICE; DRAINED: the queue that it was held for is gone."""
    reason: str
    """Id of the contention window, or of the link whose shares it is about."""
    expires_at_ns: int
    urgent: bool
    """Whether a queue stands while it waits to be told."""


@dataclass(frozen=True, slots=True)
class RateRules:
    """How leases are told."""

    lease_ns: int = 2 * S
    renew_ns: int = 1 * S
    up_share: float = 0.03
    """A rate is told anew once it is so much above the one told."""
    down_share: float = 0.01
    """Or below."""
    retry_ns: int = 500 * MS
    """After one was not told, or not done, after all, until it is wanted again."""


@dataclass(slots=True)
class _Lease:
    rate_bps: int
    action: str
    reason: str
    told_ns: int
    held: bool = True
    """Whether it is in force, as far as actuators have said."""


DONE: Final = frozenset({"APPLIED", "DUPLICATE"})
RENEWED: Final = frozenset({"OBSERVED", "NO_FLOW", "STALE", "NOT_ALLOWED"})
"""What came of a lease that is told anew no sooner than one that is in force."""


class Rates:
    """The rates of one shard's flows. `rate_of`: a directed link's bit/s, 0 where it is not known."""

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
        self._wait_ns: dict[str, int] = {}

    def take_contention(self, record: Record) -> None:
        """Take a `ContentionWindow` of the shard."""
        self.pacing.take_contention(record)

    def take_queues(self, record: Record) -> None:
        """Take a `LinkQueues` of the shard."""
        self.pacing.take_queues(record)

    def take_slices(self, slices: Iterable[Record]) -> None:
        """Take `ActuatorConfig.slices` in force."""
        self.slices.take_slices(slices)

    def take_action(self, record: Record) -> None:
        """Take what an actuator made of a PACE or SLICE of this epoch: what is not in force has no effect
        that could be judged, and what was refused is told again soon."""
        lease = self._leases.get(record["flow_id"])
        if lease is None or record["action"] != lease.action:
            return
        outcome = record["outcome"]
        lease.held = outcome in DONE
        if not lease.held and outcome not in RENEWED:
            wait_ns = 0 if outcome in ("OLD_CONFIG", "ENDED", "REVERTED") else self.rules.retry_ns
            lease.told_ns = min(lease.told_ns, record["at_ns"] - self.rules.renew_ns + wait_ns)

    def refuse(self, wanted: WantedRate, now_ns: int) -> None:
        """Note that one was not told after all: it is wanted again later, where it still is."""
        self._leases.pop(wanted.flow_id, None)
        self._wait_ns[wanted.flow_id] = now_ns + self.rules.retry_ns

    def decide(
        self, now_ns: int, flows: Iterable[LiveFlow], may: Callable[[LiveFlow, str], bool] | None = None
    ) -> list[WantedRate]:
        """Return what is to be told at `now_ns`, fabric time: urgent ones first, then by flow. `may`: whether
        PACE, or SLICE, of a flow is allowed at all."""
        live = list(flows)
        sliced = self.slices.decide(now_ns, live, may)
        paced = self.pacing.decide(now_ns, live, may, self.slices.links, self._is_held)
        return self._settle(now_ns, {flow.flow_id for flow in live}, paced, sliced)

    def held(self) -> dict[str, tuple[str, int]]:
        """Return action and bit/s of the flows that are held, by id."""
        return {name: (lease.action, lease.rate_bps) for name, lease in sorted(self._leases.items())}

    def _is_held(self, flow_id: str) -> bool:
        """Return whether a flow is held to what was told last, as far as actuators have said."""
        lease = self._leases.get(flow_id)
        return lease is None or lease.held

    def _settle(
        self, now_ns: int, here: set[str], paced: Mapping[str, Target], sliced: Mapping[str, Target]
    ) -> list[WantedRate]:
        rules, made = self.rules, []
        expires_ns = now_ns + rules.lease_ns
        for name in [name for name in self._leases if name not in here]:
            del self._leases[name]
        self._wait_ns = {name: at for name, at in self._wait_ns.items() if at > now_ns and name in here}
        for name in sorted(paced.keys() | sliced.keys()):
            found = [
                (target.rate_bps, action, target)
                for action, of_action in (("PACE", paced), ("SLICE", sliced))
                if (target := of_action.get(name)) is not None
            ]
            rate, action, target = min(found, key=lambda each: each[:2])
            rate_bps, lease = max(1, round(rate)), self._leases.get(name)
            if lease is None:
                due = name not in self._wait_ns
            else:
                due = (
                    now_ns - lease.told_ns >= rules.renew_ns
                    or action != lease.action
                    or not (1 - rules.down_share) <= rate_bps / lease.rate_bps <= 1 + rules.up_share
                )
            if due:
                fell = lease is None or rate_bps < lease.rate_bps * (1 - rules.down_share)
                held = lease is None or lease.held
                self._leases[name] = _Lease(rate_bps, action, target.reason, now_ns, held)
                kind = "INCAST" if action == "PACE" else "SLICE"
                made.append(WantedRate(name, action, rate_bps, kind, target.reason, expires_ns,
                                       fell and target.urgent))  # fmt: skip
        for name in sorted(self._leases.keys() - paced.keys() - sliced.keys()):
            lease = self._leases.pop(name)
            kind = "DRAINED" if lease.action == "PACE" else "SLICE"
            made.append(WantedRate(name, "UNPACE", 0, kind, lease.reason, expires_ns, False))
        made.sort(key=lambda each: (not each.urgent, each.flow_id))
        return made
