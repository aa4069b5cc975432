"""One host's decisions, applied once and reported: what may be done, what is too late, what was done already.

In: records of `fabric.decisions` and `fabric.config`, an effector, what a former process noted. Out: an
`ActionReport` for each decision of this host, and for what the host does by itself: leases that end, orders
to revert, reflexes. A flow's newest (epoch, seq) fences off older ones, and so does a shard's newest epoch.
One command at a time for each flow, many over flows; nothing here waits. Knows no Kafka and no socket.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

from actuators.endpoint_protocol import RATE_MAX_BPS
from actuators.journal import NoJournal, StateStore
from schemas import codec
from schemas.limits import Limits
from schemas.topics import DECISIONS

__all__ = ["Answer", "Applier", "Effector", "key_of", "read_decision"]

_log = logging.getLogger(__name__)

Record = dict[str, Any]
Fence = tuple[int, int]
Token = Any

NAMED: Final = ("decision_id", "shard", "epoch", "seq", "flow_id", "action")
"""What a report repeats of its decision."""
MOVES: Final = frozenset({"REROUTE", "RESTORE"})
RATES: Final = frozenset({"PACE", "SLICE"})
"""Leases: a flow may have one of each, and is held to the lower."""
SECOND_NS: Final = 1_000_000_000
_FORGOTTEN_MOST: Final = 20_000
"""Flows whose fences are kept; of more, those without an owner are let go, the oldest first."""
_SHARDS_MOST: Final = 1000
"""Shards whose epochs are kept, the last ones heard of."""
_WAITING_MOST: Final = 64
"""Decisions that may wait for one flow."""
MINUTE_NS: Final = 60 * SECOND_NS
TOLD_AGAIN_NS: Final = 10 * SECOND_NS
"""Between two reports that a flow's reflex is held back."""
LEASE_MOST_NS: Final = 600 * SECOND_NS
"""A rate is held for no longer than this unless it is renewed, whatever a decision or a clock says."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a command. `value`: the source port, or bit/s, now in force; `wrong`: why not, or empty;
    `unsure`: whether it may be done all the same."""

    value: int = 0
    how: str = ""
    wrong: str = ""
    unsure: bool = False


class Effector(Protocol):
    """What moves and paces the flows of one host, by their keys."""

    def path_of(self, key: str) -> int | None:
        """Return a flow's entropy value, None where there is no such open flow."""

    def can(self, key: str) -> frozenset[str]:
        """Return what its owner lets be done to a flow: MOVE, PACE."""

    def order(self, key: str, verb: str, value: int, answer: Callable[[Answer], None]) -> None:
        """Let a flow go on from a source port (MOVE), or at a rate (PACE, bit/s; 0: let go). `answer` is
        called once, now or within a bounded time."""


@dataclass(slots=True)
class _Lease:
    """A rate that a flow is held to until `expires_at_ns`. `named`: what a report says of its decision."""

    rate_bps: int
    expires_at_ns: int
    at_ns: int
    named: Record

    def over(self, now_ns: int) -> bool:
        """Whether its time is over; also where it could never have been given so long: the clock stepped."""
        return self.expires_at_ns <= now_ns or self.expires_at_ns > now_ns + 2 * LEASE_MOST_NS


@dataclass(slots=True)
class _Flow:
    """What is known of one flow; the first part is what is noted for the next process."""

    flow_id: str
    fence: Fence = (-1, -1)
    outcome: str = ""
    intent: Record | None = None
    """Decision and former path of what is being done."""
    untold: Record | None = None
    """The report of its newest decision, until the log has it."""
    first_path: int | None = None
    """The path that it had before anything moved it."""
    set_path: int | None = None
    moved_ns: int = 0
    moved_by: Record | None = None
    leases: dict[str, _Lease] = field(default_factory=dict)
    reflexed: Record | None = None
    """The report of its newest reflex, until the log has it; its outcome is empty while it is being done."""
    busy: bool = False
    waiting: deque[tuple[Record | None, Token]] = field(default_factory=deque)
    """Decisions in their order; None: an order to revert."""
    again: bool = False
    """Whether `untold` is a former process's."""
    reflexed_before: bool = False
    """Whether `reflexed` is a former process's."""
    refused_ns: int | None = None
    rated_ns: int | None = None
    """When it was told last that a reflex is held back, and a change of its rate counted, by `clock_ns`."""

    @property
    def rate_bps(self) -> int | None:
        """What it is held to; None: nothing."""
        return min((lease.rate_bps for lease in self.leases.values()), default=None)

    @property
    def in_force(self) -> int:
        """Actions on it that are in force."""
        return len(self.leases) + (self.moved_by is not None)

    def since(self) -> list[int]:
        """Return when each action that is in force was taken, fabric time."""
        moved = [] if self.moved_by is None else [self.moved_ns]
        return [*moved, *(lease.at_ns for lease in self.leases.values())]

    def state(self) -> Record:
        """Return what the next process needs to know."""
        return {
            "flow_id": self.flow_id,
            "fence": list(self.fence),
            "outcome": self.outcome,
            "intent": self.intent,
            "untold": self.untold,
            "first_path": self.first_path,
            "set_path": self.set_path,
            "moved_ns": self.moved_ns,
            "moved_by": self.moved_by,
            "leases": {kind: asdict(lease) for kind, lease in self.leases.items()},
            "reflexed": self.reflexed,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> _Flow:
        """Return the flow as the former process left it."""
        leases = {kind: _Lease(**lease) for kind, lease in state["leases"].items()}
        flow = cls(**{**state, "fence": tuple(state["fence"]), "leases": leases})
        flow.again, flow.reflexed_before = flow.untold is not None, flow.reflexed is not None
        return flow


class Applier:
    """The decisions of one host.

    `report` takes each `ActionReport` with the token of the decision that it is about, None where it is about
    none that is waited for; `now_ns`: fabric time; `clock_ns`: a clock that never steps. `boot`: the only one
    whose flows are here; None: any. `states`: what a former process noted, by name.
    """

    def __init__(
        self,
        host: str,
        effector: Effector,
        report: Callable[[Record, Token], None],
        now_ns: Callable[[], int],
        clock_ns: Callable[[], int],
        *,
        store: StateStore | None = None,
        states: Mapping[str, Mapping[str, Any]] | None = None,
        boot: str | None = None,
    ) -> None:
        self.host = host
        self.limits = Limits()
        self._effector, self._report, self._now_ns, self._clock_ns = effector, report, now_ns, clock_ns
        self._store: StateStore = store or NoJournal()
        self._boot = boot
        self._flows: dict[str, _Flow] = {}
        self._leased: dict[str, _Flow] = {}
        self._lately: deque[int] = deque()
        """When actions were taken within the last second, by `clock_ns`."""
        self._moved_lately: dict[str, int] = {}
        """Flows that were moved within the last minute, and when, by `clock_ns`; the oldest first."""
        self._forget_from = _FORGOTTEN_MOST
        self._epochs: dict[str, int] = {}
        self._reverted_ns = 0
        self._reflexes = 0
        self.settled = True
        """Whether all owners that there are have come: until then, decisions wait for theirs."""
        self._recall(states or {})

    # --- what comes in ---

    def take_config(self, records: Mapping[str, Record]) -> None:
        """Take the records of `fabric.config` in force, by key."""
        before, self.limits = self.limits, Limits.of(records, self.host)
        order_ns = self.limits.revert_before_ns
        if order_ns == before.revert_before_ns:
            return
        order_ns = min(order_ns, self._now_ns() + SECOND_NS)  # what is still to come is not undone by it
        if order_ns > self._reverted_ns:
            self._reverted_ns = order_ns
            self._note_host()
            for key, flow in list(self._flows.items()):
                if flow.in_force or flow.busy or flow.waiting:
                    flow.waiting.append((None, None))
                    self._pump(key, flow)

    def take(self, decision: Record, token: Token = None) -> None:
        """Take one decision of this host."""
        key = key_of(decision["flow_id"])
        self.see_epoch(decision["shard"], decision["epoch"])
        if not self._mine(decision["flow_id"]):  # may be called as one of ours is: leaves that alone
            self._say(_named(decision), self._judge(_Flow(""), decision, None), None, "", None, token=token)
            return
        flow = self._flows.get(key)
        if flow is None:
            self._forget()
            flow = self._flows[key] = _Flow(decision["flow_id"])
        if len(flow.waiting) >= _WAITING_MOST:
            self._pass_over(key, flow)
        flow.waiting.append((decision, token))
        self._pump(key, flow)

    def see_epoch(self, shard: str, epoch: int) -> None:
        """Take that a shard's policy has an owner of this epoch: from now on decisions of older ones, also
        those that wait, are too late."""
        if epoch > self._epochs.get(shard, -1):
            self._epochs.pop(shard, None)
            self._epochs[shard] = epoch
            if len(self._epochs) > _SHARDS_MOST:
                del self._epochs[next(iter(self._epochs))]
            self._note_host()

    def published(self, record: Mapping[str, Any]) -> None:
        """Take that the log has a report."""
        flow = self._flows.get(key_of(record["flow_id"]))
        if flow is not None and flow.reflexed is not None and _same(flow.reflexed, record):
            flow.reflexed, flow.reflexed_before = None, False
            self._note(flow)
        if flow is not None and flow.untold is not None and _same(flow.untold, record):
            flow.untold, flow.again = None, False
            self._note(flow)

    def seen(self, key: str) -> None:
        """Take that a flow's owner has told of it: what waited for that goes on."""
        flow = self._flows.get(key)
        if flow is None:
            return
        self._tell_former_reflex(key, flow)
        if any(at_ns < self._reverted_ns for at_ns in flow.since()) and (None, None) not in flow.waiting:
            flow.waiting.append((None, None))
        self._pump(key, flow)

    def gone(self, key: str) -> None:
        """Take that a flow is no more: nothing of it is in force."""
        flow = self._flows.get(key)
        if flow is None:
            return
        flow.leases.clear()
        flow.moved_by = flow.first_path = flow.set_path = flow.intent = None
        self._leased.pop(key, None)
        self._note(flow)
        self._pump(key, flow)

    def rates(self) -> dict[str, int]:
        """Return what flows are held to, bit/s, by key."""
        return {key: rate for key, flow in self._leased.items() if (rate := flow.rate_bps) is not None}

    def settle(self) -> None:
        """Wait for no owners any more."""
        self.settled = True
        for key, flow in list(self._flows.items()):
            self._tell_former_reflex(key, flow)
            self._pump(key, flow)

    def tick(self) -> None:
        """End the leases whose time is over."""
        now_ns = self._now_ns()
        for key, flow in list(self._leased.items()):
            if flow.busy or self._effector.path_of(key) is None:  # its owner may come back, and still hold it
                continue
            for kind in [kind for kind, lease in flow.leases.items() if lease.over(now_ns)]:
                self._let_go(key, flow, kind, "ENDED", "its time was over")
                break  # the next one once this is answered

    def due_ns(self) -> int | None:
        """Return when the next lease ends, fabric time; None: none is held."""
        return min(
            (
                lease.expires_at_ns
                for key, flow in self._leased.items()
                if not flow.busy and self._effector.path_of(key) is not None
                for lease in flow.leases.values()
            ),
            default=None,
        )

    def release(self, detail: str) -> None:
        """Let go of all rates: the actuator ends for good. Moves stay."""
        for key, flow in list(self._leased.items()):
            for kind in list(flow.leases):
                self._let_go(key, flow, kind, "REVERTED", detail)

    def repair(self, flow_id: str, to_path: int, detail: str, job: str | None = None, flows: int = 1) -> bool:
        """Move a flow of `job` without a decision, where limits allow it; return whether it is being done.

        `flows`: how many of this host could be moved so; of them no more than the share that may move within
        a minute do.
        """
        key = key_of(flow_id)
        before = self._effector.path_of(key)
        limits = self.limits
        if before is None or before == to_path or not limits.act or "REROUTE" not in limits.allowed:
            return False
        if "MOVE" not in self._effector.can(key) or not self._mine(flow_id) or _wrong_path(to_path):
            return False
        flow = self._flows.setdefault(key, _Flow(flow_id))
        if flow.busy or flow.waiting:
            return False
        began_ns = self._clock_ns()
        held = self._why_no_reflex(key, job, flows)
        if held and flow.refused_ns is not None and began_ns - flow.refused_ns < TOLD_AGAIN_NS:
            return False
        self._reflexes += 1
        named = {
            "decision_id": f"{self.host}/reflex/{self._now_ns() // 1_000_000}/{self._reflexes}",
            "shard": "",
            "epoch": 0,
            "seq": self._reflexes,
            "flow_id": flow_id,
            "action": "REROUTE",
        }
        self._note_host()
        if held:
            flow.refused_ns = began_ns
            self._say(named, "LIMITED", before, f"{held}; {detail}", flow)
            return False
        flow.reflexed = {**self._record(named, "", before, detail, flow, "", None), "to_path": to_path}
        flow.reflexed_before = False
        self._note(flow)

        def answered(answer: Answer) -> None:
            outcome = "FAILED" if answer.wrong else "LOCAL_REPAIR"
            if not answer.wrong:
                self._moved(flow, before, answer.value, named)
            self._end(key, flow)
            said = answer.wrong or detail
            flow.reflexed = self._record(named, outcome, before, said, flow, answer.how, began_ns)
            self._note(flow)
            self._report(flow.reflexed, None)
            self._pump(key, flow)

        self._order(key, flow, "MOVE", to_path, answered)
        return True

    def _why_no_reflex(self, key: str, job: str | None, flows: int) -> str:
        """Return which limit forbids that a flow is moved without a decision now, empty where none does."""
        limits = self.limits
        if job in limits.protected_jobs:
            return f"job {job} is protected"
        self._forget_moves(self._clock_ns())
        most = limits.most_moves(flows)
        if key not in self._moved_lately and len(self._moved_lately) >= most:
            return f"max_moved_share: {most} of {flows} flows may move within a minute"
        return "" if self._within_cap() else f"max_actions_per_s {limits.max_actions_per_s}"

    def _forget_moves(self, now_ns: int) -> None:
        while self._moved_lately:
            oldest = next(iter(self._moved_lately))
            if self._moved_lately[oldest] > now_ns - MINUTE_NS:
                return
            del self._moved_lately[oldest]

    def _tell_former_reflex(self, key: str, flow: _Flow) -> None:
        """Report a reflex that a former process could not tell of: no decision will ask for it again."""
        record = flow.reflexed
        if record is None or not flow.reflexed_before:
            return
        path = self._effector.path_of(key)
        if path is None and not self.settled:
            return
        flow.reflexed_before = False
        if not record["outcome"]:
            done = path is not None and path == record["to_path"] != record["from_path"]
            if done and path is not None:
                self._moved(flow, record["from_path"], path, {name: record[name] for name in NAMED})
            detail = (
                "done before the actuator ended, told after it" if done else "the actuator ended meanwhile"
            )
            record = {**record, "outcome": "LOCAL_REPAIR" if done else "FAILED", "to_path": path, "detail": detail}
        flow.reflexed = {**record, "at_ns": self._now_ns()}
        self._note(flow)
        self._report(flow.reflexed, None)

    def fence_of(self, flow_id: str) -> Fence:
        """Return (epoch, seq) of the newest decision taken for a flow."""
        flow = self._flows.get(key_of(flow_id))
        return (-1, -1) if flow is None else flow.fence

    @property
    def in_force(self) -> int:
        """Actions that are in force: flows moved, leases held."""
        return sum(flow.in_force for flow in self._flows.values())

    @property
    def reverting(self) -> int:
        """Actions that are in force and to be undone by order, as far as their flows are here."""
        return sum(
            sum(at_ns < self._reverted_ns for at_ns in flow.since())
            for key, flow in self._flows.items()
            if flow.in_force and self._effector.path_of(key) is not None
        )

    @property
    def busy(self) -> bool:
        """Whether commands are unanswered."""
        return any(flow.busy for flow in self._flows.values())

    # --- one flow ---

    def _pump(self, key: str, flow: _Flow) -> None:
        """Go on with what waits for a flow, until a command is on its way."""
        while flow.waiting and not flow.busy:
            decision = flow.waiting[0][0]
            if not self.settled and self._effector.path_of(key) is None:
                return
            decision, token = flow.waiting.popleft()
            if decision is None:
                self._revert(key, flow)
            else:
                self._decide(key, flow, decision, token)

    def _pass_over(self, key: str, flow: _Flow) -> None:
        """Give up the oldest decision that waits for a flow."""
        for at, (decision, token) in enumerate(flow.waiting):
            if decision is not None:
                del flow.waiting[at]
                detail = f"{_WAITING_MOST} newer decisions wait for this flow"
                self._say(_named(decision), "LIMITED", self._effector.path_of(key), detail, flow, token=token)
                return

    def _decide(self, key: str, flow: _Flow, decision: Record, token: Token) -> None:
        before = self._effector.path_of(key)
        if flow.again and _fence(decision) == flow.fence and flow.untold is not None:
            flow.again = False  # done by a former process that could not say so any more
            self._report({**flow.untold, "at_ns": self._now_ns()}, token)
            return
        if self._was_done(flow, decision, before):
            former = flow.intent["from_path"] if flow.intent is not None else None
            self._moved(flow, former, decision["to_path"], _named(decision))
            detail = "done before the actuator ended, told after it"
            self._conclude(key, flow, decision, "APPLIED", former, detail, token)
            return
        outcome = self._judge(flow, decision, before)
        if outcome in ("STALE", "DUPLICATE"):
            self._say(_named(decision), outcome, before, "", flow, token=token)
        elif outcome:
            self._conclude(key, flow, decision, outcome, before, "", token)
        elif decision["action"] in MOVES:
            self._move(key, flow, decision, before, token)
        else:
            self._rate(key, flow, decision, before, token)

    def _was_done(self, flow: _Flow, decision: Record, path: int | None) -> bool:
        """Whether a former process was at this move, and the flow is where it was to be led."""
        intent = flow.intent
        return (
            intent is not None
            and intent["decision_id"] == decision["decision_id"]
            and decision["action"] in MOVES
            and path is not None
            and path == decision["to_path"] != intent["from_path"]
        )

    def _judge(self, flow: _Flow, decision: Record, path: int | None) -> str:
        """Return why a decision is not applied, empty where it is."""
        fence = _fence(decision)
        if fence < flow.fence or decision["epoch"] < self._epochs.get(decision["shard"], 0):
            return "STALE"
        if fence == flow.fence:
            return "DUPLICATE" if flow.outcome == "APPLIED" else flow.outcome
        if path is None:
            return "NO_FLOW"
        if self._now_ns() >= decision["expires_at_ns"]:
            return "EXPIRED"
        if decision["config_version"] != self.limits.version:
            return "OLD_CONFIG"
        if decision["action"] not in self.limits.allowed:
            return "NOT_ALLOWED"
        if not self.limits.act:
            return "OBSERVED"
        rated_ns = flow.rated_ns if decision["action"] in RATES else None
        if rated_ns is not None and self._clock_ns() - rated_ns < SECOND_NS:
            return ""  # a rate follows its queue: of a flow one change a second counts
        if not self._within_cap():
            return "LIMITED"
        if decision["action"] in RATES:
            flow.rated_ns = self._clock_ns()
        return ""

    def _within_cap(self) -> bool:
        """Whether the host may take one more action now; counts it where it may."""
        now_ns = self._clock_ns()
        while self._lately and now_ns - self._lately[0] >= SECOND_NS:
            self._lately.popleft()
        if len(self._lately) >= self.limits.max_actions_per_s:
            return False
        self._lately.append(now_ns)
        return True

    def _move(self, key: str, flow: _Flow, decision: Record, before: int | None, token: Token) -> None:
        to_path = decision["to_path"]
        wrong = _wrong_path(to_path)
        if not wrong and "MOVE" not in self._effector.can(key):
            wrong = "its owner cannot move it"
        if wrong:
            self._conclude(key, flow, decision, "FAILED", before, wrong, token)
            return
        if before == to_path:
            self._conclude(key, flow, decision, "APPLIED", before, "it has that path", token)
            return
        self._intend(flow, decision, before)
        began_ns = self._clock_ns()

        def answered(answer: Answer) -> None:
            outcome = "FAILED" if answer.wrong else "APPLIED"
            if not answer.wrong:
                self._moved(flow, before, answer.value, _named(decision))
            self._end(key, flow)
            self._conclude(key, flow, decision, outcome, before, answer.wrong, token, answer.how, began_ns)
            self._pump(key, flow)

        self._order(key, flow, "MOVE", to_path, answered)

    def _rate(self, key: str, flow: _Flow, decision: Record, before: int | None, token: Token) -> None:
        action, rate_bps = decision["action"], decision["rate_bps"]
        kind = "PACE" if action == "UNPACE" else action
        wrong = ""
        if action in RATES and not (rate_bps and rate_bps <= RATE_MAX_BPS):
            wrong = f"rate_bps {rate_bps}: expected 1 to {RATE_MAX_BPS}"
        elif action in RATES and decision["expires_at_ns"] > self._now_ns() + LEASE_MOST_NS:
            wrong = (
                f"expires_at_ns {decision['expires_at_ns']}: above {LEASE_MOST_NS // SECOND_NS} s from now"
            )
        elif action not in RATES and action != "UNPACE":
            wrong = f"{action}: nothing here carries it out"
        elif "PACE" not in self._effector.can(key):
            wrong = "its owner cannot pace it"
        if wrong:
            self._conclude(key, flow, decision, "FAILED", before, wrong, token)
            return
        old = flow.leases.get(kind)
        if action == "UNPACE":
            if old is None:
                self._conclude(key, flow, decision, "APPLIED", before, "it was not held", token)
                return
            flow.leases.pop(kind)
        else:
            flow.leases[kind] = _Lease(rate_bps, decision["expires_at_ns"], self._now_ns(), _named(decision))
            self._leased[key] = flow
        if not self._intend(flow, decision, before) and action != "UNPACE":
            flow.leases.pop(kind)
            if old is not None:
                flow.leases[kind] = old
            self._hold(key, flow)
            self._conclude(key, flow, decision, "FAILED", before, _UNNOTED, token)
            return
        began_ns = self._clock_ns()

        def answered(answer: Answer) -> None:
            outcome = "FAILED" if answer.wrong else "APPLIED"
            if answer.wrong and old is not None:
                flow.leases[kind] = old
            elif answer.wrong and not answer.unsure:  # one that may be held is ended like one that is
                flow.leases.pop(kind, None)
            self._hold(key, flow)
            self._end(key, flow)
            self._conclude(key, flow, decision, outcome, before, answer.wrong, token, answer.how, began_ns)
            self._pump(key, flow)

        self._order(key, flow, "PACE", flow.rate_bps or 0, answered)

    def _let_go(self, key: str, flow: _Flow, kind: str, outcome: str, detail: str) -> None:
        """End a lease by ourselves, and report it with its decision."""
        before, began_ns = self._effector.path_of(key), self._clock_ns()
        if before is None:
            return
        lease = flow.leases.pop(kind)
        self._hold(key, flow)

        def answered(answer: Answer) -> None:
            if answer.wrong and kind not in flow.leases and self._effector.path_of(key) is not None:
                now_ns = self._now_ns()  # it may be held still: let go of it again soon
                flow.leases[kind] = replace(lease, expires_at_ns=now_ns + SECOND_NS, at_ns=now_ns)
                self._hold(key, flow)
            self._end(key, flow)
            self._note(flow)
            what = "FAILED" if answer.wrong else outcome
            self._say(lease.named, what, before, answer.wrong or detail, flow, answer.how, began_ns)
            self._pump(key, flow)

        self._order(key, flow, "PACE", flow.rate_bps or 0, answered)

    def _revert(self, key: str, flow: _Flow) -> None:
        """Undo what was done before the order to revert: one thing, the rest waits again."""
        before, to_path, named = self._effector.path_of(key), flow.first_path, flow.moved_by
        if before is None:
            return  # until its owner tells of it again
        for kind, lease in flow.leases.items():
            if lease.at_ns < self._reverted_ns:
                flow.waiting.appendleft((None, None))
                self._let_go(key, flow, kind, "REVERTED", "undone by order")
                return
        if named is None or flow.moved_ns >= self._reverted_ns or to_path is None:
            return
        if before != flow.set_path:  # its owner led it elsewhere: nothing of ours is left
            flow.moved_by = flow.first_path = flow.set_path = None
            self._note(flow)
            return
        began_ns = self._clock_ns()

        def answered(answer: Answer) -> None:
            if not answer.wrong:
                flow.moved_by = flow.first_path = flow.set_path = None
            self._end(key, flow)
            self._note(flow)
            what = "FAILED" if answer.wrong else "REVERTED"
            self._say(named, what, before, answer.wrong or "undone by order", flow, answer.how, began_ns)
            self._pump(key, flow)

        self._order(key, flow, "MOVE", to_path, answered)

    def _order(
        self, key: str, flow: _Flow, verb: str, value: int, answered: Callable[[Answer], None]
    ) -> None:
        flow.busy = True
        self._effector.order(key, verb, value, answered)

    def _end(self, key: str, flow: _Flow) -> None:
        flow.busy, flow.intent = False, None

    def _moved(self, flow: _Flow, before: int | None, path: int, named: Record) -> None:
        if flow.first_path is None or before != flow.set_path:
            flow.first_path = before
        flow.set_path, flow.moved_by, flow.moved_ns = path, named, self._now_ns()
        key = key_of(flow.flow_id)
        self._moved_lately.pop(key, None)
        self._moved_lately[key] = self._clock_ns()
        self._forget_moves(self._clock_ns())
        if path == flow.first_path:  # it is back where it was
            flow.moved_by = flow.first_path = flow.set_path = None

    def _hold(self, key: str, flow: _Flow) -> None:
        if flow.leases:
            self._leased[key] = flow
        else:
            self._leased.pop(key, None)

    # --- what is told and noted ---

    def _conclude(
        self,
        key: str,
        flow: _Flow,
        decision: Record,
        outcome: str,
        before: int | None,
        detail: str,
        token: Token,
        how: str = "",
        began_ns: int | None = None,
    ) -> None:
        """Note what came of a decision, then report it."""
        flow.fence, flow.outcome, flow.intent = _fence(decision), outcome, None
        record = self._record(_named(decision), outcome, before, detail, flow, how, began_ns)
        if outcome == "NO_FLOW" and not flow.in_force and not flow.waiting:
            self._flows.pop(key, None)
            self._store.save(self._name(flow), None)
        else:
            flow.untold, flow.again = record, False
            self._note(flow)
        self._report(record, token)

    def _say(
        self,
        named: Record,
        outcome: str,
        before: int | None,
        detail: str,
        flow: _Flow | None,
        how: str = "",
        began_ns: int | None = None,
        token: Token = None,
    ) -> None:
        self._report(self._record(named, outcome, before, detail, flow, how, began_ns), token)

    def _record(
        self,
        named: Record,
        outcome: str,
        before: int | None,
        detail: str,
        flow: _Flow | None,
        how: str,
        began_ns: int | None,
    ) -> Record:
        took_ns = 0 if began_ns is None else self._clock_ns() - began_ns
        path = self._effector.path_of(key_of(named["flow_id"])) if self._mine(named["flow_id"]) else None
        rate_bps = None if flow is None else flow.rate_bps
        return {
            **named,
            "host": self.host,
            "at_ns": self._now_ns(),
            "outcome": outcome,
            "from_path": before,
            "to_path": path,
            "rate_bps": rate_bps,
            "how": how,
            "took_ns": took_ns,
            "config_version": self.limits.version,
            "detail": detail[:300],
        }

    def _intend(self, flow: _Flow, decision: Record, before: int | None) -> bool:
        """Note what is to be done; return whether that is kept, since else a kill would leave it behind."""
        flow.intent = {"decision_id": decision["decision_id"], "from_path": before}
        return self._note(flow)

    def _name(self, flow: _Flow) -> str:
        return f"flow {flow.flow_id}"

    def _note(self, flow: _Flow) -> bool:
        return self._store.save(self._name(flow), flow.state())

    def _note_host(self) -> bool:
        state = {"epochs": self._epochs, "reverted_ns": self._reverted_ns, "reflexes": self._reflexes}
        return self._store.save(f"host {self.host}", state)

    def _recall(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        for name, state in states.items():
            try:
                if name == f"host {self.host}":
                    self._epochs, self._reverted_ns = dict(state["epochs"]), int(state["reverted_ns"])
                    self._reflexes = int(state["reflexes"])
                elif name.startswith(f"flow {self.host}/"):
                    self._recall_flow(name, state)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                _log.warning("%s: what was noted cannot be used: %r", name, error)

    def _recall_flow(self, name: str, state: Mapping[str, Any]) -> None:
        if not self._mine(state["flow_id"]):
            self._store.save(name, None)  # of a former boot
            return
        flow = _Flow.of(state)
        key = key_of(flow.flow_id)
        self._flows[key] = flow
        self._hold(key, flow)

    def _forget(self) -> None:
        """Let go of flows without an owner, where there are too many."""
        if len(self._flows) < self._forget_from:
            return
        for key, flow in list(self._flows.items())[: len(self._flows) // 2]:
            if not flow.busy and not flow.waiting and self._effector.path_of(key) is None:
                del self._flows[key]
                self._leased.pop(key, None)
                self._store.save(self._name(flow), None)
        self._forget_from = max(_FORGOTTEN_MOST, 2 * len(self._flows))

    def _mine(self, flow_id: str) -> bool:
        """Whether a flow is of this host, and of this boot of it."""
        host, _, rest = flow_id.partition("/")
        return host == self.host and (self._boot is None or rest.partition("/")[0] == self._boot)


def read_decision(key: bytes | None, value: bytes, registry: codec.Registry | None = None) -> Record:
    """Return the decision in a message. Raises BadRecord."""
    decision = codec.decode(value, DECISIONS.record, registry)
    if key != decision["host"].encode():
        raise codec.BadRecord("WRONG_KEY", f"key {key!r}, expected the record's {decision['host']!r}")
    return decision


def key_of(flow_id: str) -> str:
    """Return how a flow's owner calls it: its id without host and boot."""
    return flow_id.split("/", 2)[-1]


_UNNOTED: Final = "it cannot be noted, and a kill would leave it behind"


def _named(decision: Record) -> Record:
    return {name: decision[name] for name in NAMED}


def _fence(decision: Record) -> Fence:
    return decision["epoch"], decision["seq"]


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["decision_id"], one["outcome"]) == (other["decision_id"], other["outcome"])


def _wrong_path(path: int | None) -> str:
    if path is None:
        return "to_path is not given"
    return "" if 0 < path < 65_536 else f"to_path {path}: expected 1 to 65535"
