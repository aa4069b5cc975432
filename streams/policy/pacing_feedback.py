"""What paces do to what a receiver takes in, and what is learnt of it for the next time.

In: the sum of the rates of all flows to a NIC, again and again, before it is paced and while it is; the queue
at its last link. Out: how many times an even split of the link its flows may each have (`turns`), and whether
to let go of them. Pure: times are the caller's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streams.runtime.flow_table import LiveFlow

__all__ = ["FeedbackTable", "Intake", "PacingFeedback", "PacingFeedbackRules"]

MS: Final = 1_000_000
S: Final = 1_000 * MS


@dataclass(frozen=True, slots=True)
class PacingFeedbackRules:
    """When a pace is too tight, and what is done then."""

    sample_ns: int = 100 * MS
    window_ns: int = 1 * S
    """What is taken in is judged over so much time of sending, less only just after a pace began."""
    least_ns: int = 300 * MS
    """What is far too little is seen in less."""
    settle_ns: int = 400 * MS
    """From a lower pace until reports show it: it is applied, and an interval of a report has passed."""
    short: float = 0.9
    """Part of what was taken in before, below which paces are too tight."""
    short_unknown: float = 0.7
    """And part of what is given out, where nobody knows what was taken in before."""
    full: float = 0.85
    """And part of the link's rate from which on nothing more is looked for then."""
    spare: float = 0.97
    """Part of what was taken in before, below which flows are given no less."""
    steady: float = 0.4
    """Part of the mean that the lowest rate is, where senders do not pause."""
    idle_share: float = 0.02
    """Share of the link's rate below which nobody is taken to send."""
    step_ns: int = 200 * MS
    factor: float = 1.5
    most_factor: float = 4.0
    """A raise is by `factor`; the first one by what is missing, up to this."""
    gain: float = 1.1
    """Raises that bring less than this were not what was missing."""
    wait_ns: int = 1 * S
    """At a whole link for each flow: until what that brought is judged."""
    margin: float = 1.5
    """A share is not lowered to less than so much above one that was too tight."""
    again_ns: int = 1 * S
    """From a trial that brought nothing to the next; twice as long each time."""
    help_ns: int = 10 * S
    """Time of sending within which paces must have made the queue shorter."""
    helped: float = 0.8
    """Part of the queue before, up to which it is shorter."""
    alone_ns: int = 60 * S
    """A receiver that pacing did not help is left alone for so long; twice as long each time."""
    alone_most_ns: int = 1920 * S
    keep_ns: int = 600 * S
    """What was learnt of a receiver is kept for so long."""


class Seen(NamedTuple):
    """What a NIC took in for some time."""

    bps: float
    """Mean while somebody sent."""
    most_bps: float
    long_ns: int
    """For how long somebody sent."""
    steady: bool
    """Whether somebody sent all the time."""


class Intake:
    """What one NIC took in of late."""

    def __init__(self, rules: PacingFeedbackRules) -> None:
        self._rules = rules
        self._seen: deque[tuple[int, float]] = deque()

    def hear(self, bps: float, now_ns: int) -> None:
        """Take the sum of the rates of all flows to it."""
        seen = self._seen
        seen.append((now_ns, bps))
        while seen[0][0] <= now_ns - 2 * self._rules.window_ns:
            seen.popleft()

    def since(self, from_ns: int, least_bps: float) -> Seen:
        """Return what was heard after `from_ns`, of rates above `least_bps`."""
        seen = [bps for at_ns, bps in self._seen if at_ns > from_ns]
        found = [bps for bps in seen if bps > least_bps]
        if not found:
            return Seen(0.0, 0.0, 0, False)
        mean_bps = sum(found) / len(found)
        steady = min(seen) >= self._rules.steady * mean_bps
        return Seen(mean_bps, max(found), len(found) * self._rules.sample_ns, steady)


@dataclass(slots=True)
class _Learnt:
    """What is known of a receiver from when it was paced."""

    at_ns: int = 0
    crowd: float = 0.0
    """How many of its flows send at once; 0: not known."""
    until_ns: int = 0
    """It is left alone until then."""
    alone_ns: int = 0


@dataclass(slots=True)
class _Trial:
    """Raises of `turns`, until no more is missing."""

    bps: float
    """Taken in when it began."""
    turns: float
    tight: float
    """What both were before it."""
    raised_ns: int
    whole_ns: int | None = None
    """Since when each flow may have a whole link."""


# Flow reports are of a longer time than one step of a collective operation: of 28 flows that take turns,
# four at a time, they say that 28 send. An even split then gives each a seventh of what it could have, and
# the link runs at a seventh. Rates alone do not tell this from an incast of 28; what the receiver takes in
# does. With k flows of n sending at once at p each it is k p, which grows with p as long as p is what holds
# them back: so p is raised, `turns` over an even split, until as much comes in as came in unpaced.
@dataclass(slots=True)
class PacingFeedback:
    """One receiver that is paced. `before_bps`: what it took in unpaced, 0 where nobody knows."""

    rules: PacingFeedbackRules
    intake: Intake
    rate_bps: int
    begun_ns: int
    before_bps: float = 0.0
    turns: float = 1.0
    tight: float = 0.0
    """The highest `turns` found too tight."""
    useless: bool = False
    """Pacing does no good here: let go."""
    helped: bool = False
    _judge_ns: int = 0
    """What was taken in until then says nothing of the paces in force."""
    raised_ns: int = -S
    """When a trial last raised `turns`."""
    _trial: _Trial | None = None
    _next_ns: int = 0
    _wait_ns: int = 0
    _limit_ns: int = -S
    _queue_before_ns: float = 0.0
    _given: float = 1.0
    """Share of the link that is given out."""
    _proof: _Trial | None = None
    """The last trial, until a whole window has shown whether it brought anything."""
    _queues: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._judge_ns = self.begun_ns + self.rules.settle_ns
        self._wait_ns = self.rules.again_ns

    def step(self, now_ns: int, *, given_bps: float, flows: int, limited: bool, queue_ns: float,
             over: bool, others_ns: int) -> None:  # fmt: skip
        """Judge. `given_bps`: what an even split gives all `flows` together; `limited`: whether some flow is
        at its pace; `queue_ns`: what packets wait at the link; `over`: whether that is too long;
        `others_ns`: when paces at any receiver were last raised by a trial: jobs wait for the slowest."""
        rules = self.rules
        self._given = min(1.0, given_bps / self.rate_bps)
        if limited:
            self._limit_ns = now_ns
        if now_ns < self._judge_ns:
            self._queue_before_ns = max(self._queue_before_ns, queue_ns)
            return
        idle_bps = rules.idle_share * self.rate_bps
        seen = self.intake.since(max(self._judge_ns, now_ns - rules.window_ns), idle_bps)
        latest_bps = self.intake.since(now_ns - 2 * rules.sample_ns, idle_bps).bps
        if self._trial is not None:
            self._go_on(self._trial, now_ns, latest_bps, flows, others_ns)
            return
        if seen.long_ns < rules.least_ns or not latest_bps:
            return
        if self._prove(now_ns, seen):
            return
        if self._short(now_ns, seen, given_bps, over):
            if now_ns >= self._next_ns and flows > 1:
                self._proof = None
                self._trial = _Trial(seen.bps, self.turns, self.tight, now_ns)
                self.tight, self.raised_ns = max(self.tight, self.turns), now_ns
                missing = (self.before_bps or given_bps) / min(seen.bps, latest_bps)
                self.turns = min(flows, self.turns * min(max(missing, rules.factor), rules.most_factor))
            return
        if seen.long_ns >= rules.window_ns:
            self._wait_ns = rules.again_ns
            if seen.steady and self.turns > 1:
                self.before_bps = max(self.before_bps, seen.bps)
        self._weigh(queue_ns)

    def join(self, turns: float, now_ns: int) -> None:
        """Take it that paces elsewhere in its flows' jobs were found too tight, and go along."""
        if turns > self.turns and self._trial is None and now_ns < self._judge_ns + self.rules.window_ns:
            self.turns = turns

    def lower(self, cut: float, now_ns: int) -> bool:
        """Take it that a queue stands though it had time to drain: give each flow less by the part `cut`,
        where it gets more than an even split. Return whether the link's share is to be left as it is."""
        if self.turns <= 1:
            return False
        seen = self.intake.since(now_ns - self.rules.window_ns, self.rules.idle_share * self.rate_bps)
        if self._trial is not None or seen.bps < self.rules.spare * self.before_bps * self._given:
            return True
        lower = max(1.0, self.turns * (1 - cut), min(self.turns, self.rules.margin * self.tight))
        if lower == self.turns:
            return False
        self.turns = lower
        self._judge_ns = max(self._judge_ns, now_ns + self.rules.settle_ns - self.rules.window_ns)
        return True

    def _prove(self, now_ns: int, seen: Seen) -> bool:
        """Take the raises of a trial back where they brought nothing: jobs pause between rounds, and a pause
        can look as if too little came in. Return whether they were."""
        proof = self._proof
        if proof is None or seen.long_ns < self.rules.window_ns:
            return False
        self._proof = None
        if seen.bps >= self.rules.gain * proof.bps:
            return False
        self.turns, self.tight = proof.turns, proof.tight
        self._judge_ns = now_ns + self.rules.settle_ns
        self._next_ns, self._wait_ns = now_ns + self._wait_ns, min(2 * self._wait_ns, self.rules.keep_ns)
        return True

    def _short(self, now_ns: int, seen: Seen, given_bps: float, over: bool) -> bool:
        """Whether the receiver takes in less than it would unpaced, of what it is given of its link."""
        rules = self.rules
        if self.before_bps:
            least_bps = rules.short * self.before_bps * min(1.0, given_bps / self.rate_bps)
            if seen.most_bps < rules.short_unknown * given_bps:
                return seen.bps < least_bps
            return seen.steady and seen.long_ns >= rules.window_ns and seen.bps < least_bps
        limited = self._limit_ns > max(self._judge_ns, now_ns - rules.window_ns)
        return limited and not over and seen.most_bps < rules.short_unknown * given_bps

    def _go_on(self, trial: _Trial, now_ns: int, bps: float, flows: int, others_ns: int) -> None:
        """Raise on, or end the trial."""
        rules = self.rules
        enough_bps = rules.short * self.before_bps or rules.full * self.rate_bps
        if bps >= enough_bps and now_ns - trial.raised_ns >= rules.step_ns:
            self._trial, self._proof, self._judge_ns = None, trial, now_ns
            return
        if trial.whole_ns is None:
            if now_ns - trial.raised_ns >= rules.step_ns:
                self.turns = min(flows, self.turns * rules.factor)
                trial.raised_ns = self.raised_ns = now_ns
                if self.turns >= flows:
                    trial.whole_ns = now_ns
        elif now_ns - max(trial.whole_ns, others_ns) >= rules.settle_ns + rules.wait_ns and bps:
            least_bps = rules.idle_share * self.rate_bps
            bps = self.intake.since(now_ns - rules.window_ns, least_bps).bps
            self.useless = bps >= rules.gain * trial.bps
            self.before_bps, self.turns = bps, trial.turns
            self.tight = 0.0 if trial.turns <= 1 else self.tight
            self._trial, self._judge_ns = None, now_ns + rules.settle_ns
            self._next_ns, self._wait_ns = now_ns + self._wait_ns, min(2 * self._wait_ns, rules.keep_ns)

    def _weigh(self, queue_ns: float) -> None:
        """Judge whether the queue is shorter."""
        if self.helped:
            return
        self._queues.append(queue_ns)
        if len(self._queues) * self.rules.sample_ns >= self.rules.help_ns:
            mean_ns = sum(self._queues) / len(self._queues)
            self.helped = mean_ns <= self.rules.helped * self._queue_before_ns or not self._queue_before_ns
            self.useless = not self.helped
            self._queues.clear()


class FeedbackTable:
    """All receivers of one shard: what they take in, and what was learnt of them."""

    def __init__(self, rules: PacingFeedbackRules | None = None) -> None:
        self.rules = rules or PacingFeedbackRules()
        self._intakes: dict[str, Intake] = {}
        self._learnt: dict[str, _Learnt] = {}
        self._sampled_ns: int | None = None

    def sample(self, now_ns: int, flows: Iterable[LiveFlow]) -> bool:
        """Take what all receivers take in, where it is time to; return whether it was."""
        if self._sampled_ns is not None and now_ns - self._sampled_ns < self.rules.sample_ns:
            return False
        self._sampled_ns = now_ns
        sums: dict[str, float] = {}
        for flow in flows:
            sums[flow.peer] = sums.get(flow.peer, 0.0) + flow.rate_bps
        for nic in self._intakes.keys() - sums.keys():
            del self._intakes[nic]
        for nic, bps in sums.items():
            self.intake(nic).hear(bps, now_ns)
        return True

    def intake(self, nic: str) -> Intake:
        """Return what a NIC takes in."""
        return self._intakes.setdefault(nic, Intake(self.rules))

    def alone(self, nic: str, now_ns: int) -> bool:
        """Whether a receiver is left alone."""
        learnt = self._learnt.get(nic)
        return learnt is not None and now_ns < learnt.until_ns

    def begin(self, nic: str, rate_bps: int, flows: int, now_ns: int) -> PacingFeedback:
        """Return the effect of pacing a receiver, with `flows`, from now on."""
        rules, intake = self.rules, self.intake(nic)
        seen = intake.since(now_ns - 2 * rules.window_ns, rules.idle_share * rate_bps)
        before_bps = seen.bps if seen.long_ns >= rules.window_ns else 0.0
        effect = PacingFeedback(rules, intake, rate_bps, now_ns, before_bps)
        learnt = self._learnt.get(nic)
        if learnt is not None and learnt.crowd and now_ns - learnt.at_ns < rules.keep_ns:
            effect.turns = max(1.0, flows / learnt.crowd)
        return effect

    def end(self, nic: str, effect: PacingFeedback, flows: int, now_ns: int) -> None:
        """Keep what was learnt of a receiver that is let go."""
        self._learnt = {
            name: each for name, each in self._learnt.items()
            if now_ns < max(each.at_ns, each.until_ns) + self.rules.keep_ns
        }  # fmt: skip
        learnt = self._learnt.setdefault(nic, _Learnt())
        learnt.at_ns = now_ns
        if effect.useless:
            learnt.alone_ns = min(2 * learnt.alone_ns or self.rules.alone_ns, self.rules.alone_most_ns)
            learnt.until_ns = now_ns + learnt.alone_ns
            return
        if effect.helped:
            learnt.alone_ns = 0
        if flows > 1:
            learnt.crowd = flows / effect.turns if effect.turns > 1 else 0.0
