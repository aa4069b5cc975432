"""Measures the effect of pacing on a receiver: whether paces are too low, and whether they shorten the queue.

The receive rate of a NIC is the sum of the rates of all flows to it. It is observed before and during the
pacing of the NIC's senders. The difference shows how far the paces may exceed an even split of the link, and
whether pacing should end. Observations of a receiver are kept for its next incast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streams.runtime.flow_table import LiveFlow
from streams.runtime.units import NS_PER_MS, NS_PER_S

NEVER_NS: Final = -NS_PER_S


@dataclass(frozen=True, slots=True)
class PacingFeedbackRules:
    """Thresholds that decide from a receiver's rate and queue whether to raise or end its paces."""

    sample_ns: int = 100 * NS_PER_MS
    window_ns: int = 1 * NS_PER_S
    """Sending time over which the receive rate is evaluated, less only just after pacing began."""
    min_ns: int = 300 * NS_PER_MS
    """Shortest sending time that shows a large shortfall."""
    settle_ns: int = 400 * NS_PER_MS
    """Time until reports show a lowered pace: the time to apply it, and one report interval."""
    low_share: float = 0.9
    """Share of the receive rate before pacing below which paces are too low."""
    low_share_unknown: float = 0.7
    """Share of the granted rate below which paces are too low, if the rate before pacing is unknown."""
    full_share: float = 0.85
    """Share of the link's rate at which a raise ends, if the rate before pacing is unknown."""
    keep_share: float = 0.97
    """Share of the receive rate before pacing below which paces are not lowered further."""
    steady_share: float = 0.4
    """Ratio of lowest to mean receive rate from which senders count as sending without pauses."""
    idle_share: float = 0.02
    """If the receive rate is below this share of the link's rate, no flow counts as sending."""
    step_ns: int = 200 * NS_PER_MS
    factor: float = 1.5
    """Factor of each raise after the first."""
    max_factor: float = 4.0
    """Upper limit of the factor of the first raise, which is to cover the whole shortfall."""
    gain: float = 1.1
    """A trial that increases the receive rate by less than this factor had no effect."""
    wait_ns: int = 1 * NS_PER_S
    """Time after which the effect is evaluated once each flow may use a whole link."""
    margin: float = 1.5
    """Oversubscription is not lowered below this multiple of the highest one that proved insufficient."""
    retry_ns: int = 1 * NS_PER_S
    """Time from a trial without effect to the next one; doubles each time."""
    effect_ns: int = 10 * NS_PER_S
    """Sending time within which paces must shorten the queue."""
    effect_share: float = 0.8
    """The queue counts as shorter if it is at most this share of the queue before pacing."""
    exclude_ns: int = 60 * NS_PER_S
    """Time for which a receiver is not paced after pacing had no effect; doubles each time."""
    max_exclude_ns: int = 1920 * NS_PER_S
    memory_ns: int = 600 * NS_PER_S
    """Time for which observations of a receiver are kept."""


class Received(NamedTuple):
    """The receive rate of a NIC over a period: mean, maximum, and the time with traffic."""

    mean_bps: float
    """Mean over the time in which any flow sent."""
    max_bps: float
    duration_ns: int
    """Time in which any flow sent."""
    steady: bool
    """True if flows sent all the time."""


class ReceiveRate:
    """Recent samples of the receive rate of one NIC."""

    def __init__(self, rules: PacingFeedbackRules) -> None:
        self._rules = rules
        self._samples: deque[tuple[int, float]] = deque()

    def add(self, bps: float, now_ns: int) -> None:
        """Add a sample: the sum of the rates of all flows to the NIC."""
        samples = self._samples
        samples.append((now_ns, bps))
        while samples[0][0] <= now_ns - 2 * self._rules.window_ns:
            samples.popleft()

    def since(self, from_ns: int, min_bps: float) -> Received:
        """Return the receive rate after `from_ns`, over the samples above `min_bps`."""
        samples = [bps for at_ns, bps in self._samples if at_ns > from_ns]
        sending = [bps for bps in samples if bps > min_bps]
        if not sending:
            return Received(0.0, 0.0, 0, False)
        mean_bps = sum(sending) / len(sending)
        steady = min(samples) >= self._rules.steady_share * mean_bps
        return Received(mean_bps, max(sending), len(sending) * self._rules.sample_ns, steady)


@dataclass(slots=True)
class _Memory:
    """Observations of a receiver while it was paced, kept for its next incast."""

    at_ns: int = 0
    concurrent: float = 0.0
    """Number of flows to the receiver that send at the same time; 0 if unknown."""
    exclude_until_ns: int = 0
    exclude_ns: int = 0


@dataclass(slots=True)
class _Trial:
    """A series of increases of the oversubscription (paces relative to an even split)."""

    bps: float
    """Receive rate when the trial began."""
    oversubscription: float
    insufficient: float
    """Values of `oversubscription` and `insufficient` of the feedback before the trial."""
    raised_ns: int
    whole_ns: int | None = None
    """Time since which the pace lets each flow use a whole link; None before that."""


# A flow report covers more time than one step of a collective. If 28 flows alternate, four at a time, reports
# show 28 senders. An even split then gives each flow a seventh of what it could have, and the link runs at a
# seventh of its rate. Rates alone do not distinguish this from an incast of 28 flows; the receive rate does.
# With k of n flows sending at once, each at pace p, the receive rate is k p. It grows with p for as long as p
# limits the flows. So p is raised to `oversubscription` times an even split, until the receive rate is as
# high as it was without pacing.
@dataclass(slots=True)
class PacingFeedback:
    """The effect of pacing on one receiver. `before_bps`: its receive rate without pacing, 0 if unknown."""

    rules: PacingFeedbackRules
    receive_rate: ReceiveRate
    rate_bps: int
    begun_ns: int
    before_bps: float = 0.0
    oversubscription: float = 1.0
    """Multiple of an even split of the link that each flow may use."""
    insufficient: float = 0.0
    """Highest oversubscription that was found too low."""
    ineffective: bool = False
    """True if pacing has no effect here and should end."""
    effective: bool = False
    """True if pacing has shortened the queue."""
    raised_ns: int = NEVER_NS
    """Time of the last raise of a trial."""
    _valid_from_ns: int = 0
    """Samples up to this time do not show the effect of the present paces."""
    _trial: _Trial | None = None
    _ended_trial: _Trial | None = None
    """The last trial; None once a whole window has shown its effect."""
    _next_trial_ns: int = 0
    _trial_wait_ns: int = 0
    _limited_ns: int = NEVER_NS
    _queue_before_ns: float = 0.0
    _granted_share: float = 1.0
    """Share of the link that is granted to the flows."""
    _queues_ns: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._valid_from_ns = self.begun_ns + self.rules.settle_ns
        self._trial_wait_ns = self.rules.retry_ns

    @property
    def _idle_bps(self) -> float:
        return self.rules.idle_share * self.rate_bps

    def step(
        self,
        now_ns: int,
        *,
        granted_bps: float,
        flows: int,
        limited: bool,
        queue_ns: float,
        over_target: bool,
        last_raise_ns: int,
    ) -> None:
        """Evaluate the newest sample of the receive rate, and raise or lower the oversubscription.

        `granted_bps`: rate of all `flows` together under an even split. `limited`: whether a flow sends at
        its pace. `queue_ns`: delay at the link. `over_target`: whether the delay exceeds its target.
        `last_raise_ns`: time of the last raise at any receiver of the same jobs; jobs wait for the slowest.
        """
        rules = self.rules
        self._granted_share = min(1.0, granted_bps / self.rate_bps)
        if limited:
            self._limited_ns = now_ns
        if now_ns < self._valid_from_ns:
            self._queue_before_ns = max(self._queue_before_ns, queue_ns)
            return
        received = self.receive_rate.since(max(self._valid_from_ns, now_ns - rules.window_ns), self._idle_bps)
        latest_bps = self.receive_rate.since(now_ns - 2 * rules.sample_ns, self._idle_bps).mean_bps
        if self._trial is not None:
            self._continue_trial(self._trial, now_ns, latest_bps, flows, last_raise_ns)
            return
        if received.duration_ns < rules.min_ns or not latest_bps:
            return
        if self._revert_trial(now_ns, received):
            return
        if self._is_low(now_ns, received, granted_bps, over_target):
            if now_ns >= self._next_trial_ns and flows > 1:
                self._begin_trial(now_ns, received, latest_bps, granted_bps, flows)
            return
        if received.duration_ns >= rules.window_ns:
            self._trial_wait_ns = rules.retry_ns
            if received.steady and self.oversubscription > 1:
                self.before_bps = max(self.before_bps, received.mean_bps)
        self._evaluate_queue(queue_ns)

    def adopt(self, oversubscription: float, now_ns: int) -> None:
        """Raise the oversubscription to another receiver's of the same jobs, if pacing has just begun."""
        is_new = now_ns < self._valid_from_ns + self.rules.window_ns
        if oversubscription > self.oversubscription and self._trial is None and is_new:
            self.oversubscription = oversubscription

    def reduce(self, cut: float, now_ns: int) -> bool:
        """Lower the oversubscription by the fraction `cut`, because a queue did not drain in time.

        Return True if the caller should not change the share of the link.
        """
        rules = self.rules
        if self.oversubscription <= 1:
            return False
        received = self.receive_rate.since(now_ns - rules.window_ns, self._idle_bps)
        needed_bps = rules.keep_share * self.before_bps * self._granted_share
        if self._trial is not None or received.mean_bps < needed_bps:
            return True
        floor = min(self.oversubscription, rules.margin * self.insufficient)
        lower = max(1.0, self.oversubscription * (1 - cut), floor)
        if lower == self.oversubscription:
            return False
        self.oversubscription = lower
        self._valid_from_ns = max(self._valid_from_ns, now_ns + rules.settle_ns - rules.window_ns)
        return True

    def _begin_trial(
        self, now_ns: int, received: Received, latest_bps: float, granted_bps: float, flows: int
    ) -> None:
        """Begin a trial: raise the oversubscription enough to compensate for the low receive rate."""
        rules = self.rules
        self._ended_trial = None
        self._trial = _Trial(received.mean_bps, self.oversubscription, self.insufficient, now_ns)
        self.insufficient = max(self.insufficient, self.oversubscription)
        self.raised_ns = now_ns
        shortfall = (self.before_bps or granted_bps) / min(received.mean_bps, latest_bps)
        factor = min(max(shortfall, rules.factor), rules.max_factor)
        self.oversubscription = min(flows, self.oversubscription * factor)

    def _revert_trial(self, now_ns: int, received: Received) -> bool:
        """Revert the raises of the last trial if they had no effect; return True if they were reverted.

        The receive rate that began the trial may have been low only because a job paused between iterations.
        """
        trial = self._ended_trial
        if trial is None or received.duration_ns < self.rules.window_ns:
            return False
        self._ended_trial = None
        if received.mean_bps >= self.rules.gain * trial.bps:
            return False
        self.oversubscription, self.insufficient = trial.oversubscription, trial.insufficient
        self._valid_from_ns = now_ns + self.rules.settle_ns
        self._postpone_trial(now_ns)
        return True

    def _postpone_trial(self, now_ns: int) -> None:
        self._next_trial_ns = now_ns + self._trial_wait_ns
        self._trial_wait_ns = min(2 * self._trial_wait_ns, self.rules.memory_ns)

    def _is_low(self, now_ns: int, received: Received, granted_bps: float, over_target: bool) -> bool:
        """Return whether the receive rate is clearly below the rate before pacing or the granted rate."""
        rules = self.rules
        is_far_below_grant = received.max_bps < rules.low_share_unknown * granted_bps
        if self.before_bps:
            min_bps = rules.low_share * self.before_bps * min(1.0, granted_bps / self.rate_bps)
            if is_far_below_grant:
                return received.mean_bps < min_bps
            is_long = received.duration_ns >= rules.window_ns
            return received.steady and is_long and received.mean_bps < min_bps
        limited = self._limited_ns > max(self._valid_from_ns, now_ns - rules.window_ns)
        return limited and not over_target and is_far_below_grant

    def _continue_trial(
        self, trial: _Trial, now_ns: int, latest_bps: float, flows: int, last_raise_ns: int
    ) -> None:
        """End the trial if the receive rate has recovered; otherwise raise the oversubscription further."""
        rules = self.rules
        enough_bps = rules.low_share * self.before_bps or rules.full_share * self.rate_bps
        is_step_over = now_ns - trial.raised_ns >= rules.step_ns
        if latest_bps >= enough_bps and is_step_over:
            self._trial, self._ended_trial, self._valid_from_ns = None, trial, now_ns
            return
        if trial.whole_ns is None:
            if is_step_over:
                self.oversubscription = min(flows, self.oversubscription * rules.factor)
                trial.raised_ns = self.raised_ns = now_ns
                if self.oversubscription >= flows:
                    trial.whole_ns = now_ns
            return
        evaluate_ns = max(trial.whole_ns, last_raise_ns) + rules.settle_ns + rules.wait_ns
        if now_ns >= evaluate_ns and latest_bps:
            self._fail_trial(trial, now_ns)

    def _fail_trial(self, trial: _Trial, now_ns: int) -> None:
        """End a trial in which even a pace of the whole link for each flow did not restore the receive rate.

        If the rate rose by `gain` nevertheless, only unlimited flows help, and pacing should end.
        """
        rules = self.rules
        bps = self.receive_rate.since(now_ns - rules.window_ns, self._idle_bps).mean_bps
        self.ineffective = bps >= rules.gain * trial.bps
        self.before_bps, self.oversubscription = bps, trial.oversubscription
        self.insufficient = 0.0 if trial.oversubscription <= 1 else self.insufficient
        self._trial, self._valid_from_ns = None, now_ns + rules.settle_ns
        self._postpone_trial(now_ns)

    def _evaluate_queue(self, queue_ns: float) -> None:
        """Determine, once there are enough samples, whether pacing has shortened the queue."""
        if self.effective:
            return
        self._queues_ns.append(queue_ns)
        if len(self._queues_ns) * self.rules.sample_ns >= self.rules.effect_ns:
            mean_ns = sum(self._queues_ns) / len(self._queues_ns)
            is_shorter = mean_ns <= self.rules.effect_share * self._queue_before_ns
            self.effective = is_shorter or not self._queue_before_ns
            self.ineffective = not self.effective
            self._queues_ns.clear()


class FeedbackTable:
    """The receive rates of all NICs of a shard, and observations of paced receivers for later incasts."""

    def __init__(self, rules: PacingFeedbackRules | None = None) -> None:
        self.rules = rules or PacingFeedbackRules()
        self._receive_rates: dict[str, ReceiveRate] = {}
        self._memory: dict[str, _Memory] = {}
        self._sampled_ns: int | None = None

    def sample(self, now_ns: int, flows: Iterable[LiveFlow]) -> bool:
        """Sample the receive rates of all NICs if a sample is due; return True if a sample was taken."""
        if self._sampled_ns is not None and now_ns - self._sampled_ns < self.rules.sample_ns:
            return False
        self._sampled_ns = now_ns
        sums_bps: dict[str, float] = {}
        for flow in flows:
            sums_bps[flow.peer] = sums_bps.get(flow.peer, 0.0) + flow.rate_bps
        for nic in self._receive_rates.keys() - sums_bps.keys():
            del self._receive_rates[nic]
        for nic, bps in sums_bps.items():
            self.receive_rate(nic).add(bps, now_ns)
        return True

    def receive_rate(self, nic: str) -> ReceiveRate:
        """Return the receive-rate samples of a NIC; create an empty set for a new NIC."""
        return self._receive_rates.setdefault(nic, ReceiveRate(self.rules))

    def is_excluded(self, nic: str, now_ns: int) -> bool:
        """Return True if a receiver must not be paced now, because pacing had no effect there."""
        memory = self._memory.get(nic)
        return memory is not None and now_ns < memory.exclude_until_ns

    def begin(self, nic: str, rate_bps: int, flows: int, now_ns: int) -> PacingFeedback:
        """Return the feedback of a receiver whose pacing begins now, with `flows` flows to it."""
        rules, receive_rate = self.rules, self.receive_rate(nic)
        received = receive_rate.since(now_ns - 2 * rules.window_ns, rules.idle_share * rate_bps)
        before_bps = received.mean_bps if received.duration_ns >= rules.window_ns else 0.0
        feedback = PacingFeedback(rules, receive_rate, rate_bps, now_ns, before_bps)
        memory = self._memory.get(nic)
        if memory is not None and memory.concurrent and now_ns - memory.at_ns < rules.memory_ns:
            feedback.oversubscription = max(1.0, flows / memory.concurrent)
        return feedback

    def end(self, nic: str, feedback: PacingFeedback, flows: int, now_ns: int) -> None:
        """Keep the observations of a receiver whose pacing ends, for its next incast."""
        rules = self.rules
        self._memory = {
            name: memory
            for name, memory in self._memory.items()
            if now_ns < max(memory.at_ns, memory.exclude_until_ns) + rules.memory_ns
        }
        memory = self._memory.setdefault(nic, _Memory())
        memory.at_ns = now_ns
        if feedback.ineffective:
            memory.exclude_ns = min(2 * memory.exclude_ns or rules.exclude_ns, rules.max_exclude_ns)
            memory.exclude_until_ns = now_ns + memory.exclude_ns
            return
        if feedback.effective:
            memory.exclude_ns = 0
        if flows > 1:
            oversubscription = feedback.oversubscription
            memory.concurrent = flows / oversubscription if oversubscription > 1 else 0.0
