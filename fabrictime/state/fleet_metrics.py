"""The fleet's present state as metrics: links, queues, contention, jobs, alerts, policy.

The page's process holds this state for its tabs. Nothing is computed until an endpoint collects the metrics.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fabrictime.state.action_limits import ACTIONS_LIMIT, MOVES_LIMIT, limits_used
from fabrictime.state.fabric_state import STATES, UP, FabricState
from schemas.metrics.base import Detail, Sample
from schemas.metrics.control_plane import OTHER_CAUSE, SUPPRESSED_BY
from schemas.metrics.sources import SOURCES, Sources
from schemas.metrics.table import METRIC_OF_SAMPLE
from schemas.records import LinkState

NS_PER_S: Final = 1e9
COUNT_SHARE: Final = 20
LIMITS: Final = {MOVES_LIMIT: "MOVED_SHARE", ACTIONS_LIMIT: "ACTIONS_PER_S"}
"""Maps the text of a limit to its name in the policy's records."""


class FleetMetrics:
    """Reads a fabric's state. `now_ns` returns the log's time, `unreadable` the number of bad messages."""

    def __init__(
        self,
        state: FabricState,
        now_ns: Callable[[], int],
        unreadable: Callable[[], int] = lambda: 0,
        sources: Sources = SOURCES,
    ) -> None:
        self._state, self._log_now_ns, self._unreadable = state, now_ns, unreadable
        self._sources = sources
        self._cables: Mapping[LinkState, int] = {}
        self._next_cables_s = 0.0
        sources.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield the present metric samples."""
        log_ns = self._log_now_ns()
        with self._state.lock:
            now_ns = log_ns - self._state.simulated.lag_ns(log_ns)
            samples = [*self._counts(log_ns, now_ns), *self._queues(), *self._policy(now_ns)]
            if Detail.PER_LINK in self._sources.details:
                samples += self._links()
        yield Sample("fabrictime_records_rejected_total", self._unreadable())
        yield from samples

    def _counts(self, log_ns: int, now_ns: int) -> Iterator[Sample]:
        state = self._state
        age_s = state.age_s(log_ns)
        if age_s is not None:
            yield Sample("fabrictime_state_age_seconds", max(0.0, age_s))
        yield Sample("fabrictime_fleet_nics", len(state.nics))
        yield Sample("fabrictime_fleet_hosts", len({nic.host for nic in state.nics.values()}))
        yield from _by("fabrictime_links", self._cable_counts())
        yield from _by(
            "fabrictime_nic_faults", Counter(STATES[k] for k in state.nic_state.values() if k != UP)
        )
        windows = state.open_contention(now_ns)
        yield from _by("fabrictime_contention_windows", Counter(window["kind"] for window in windows))
        alerts = Counter((alert["kind"], alert["severity"]) for alert in state.active_alerts())
        yield from _by("fabrictime_alerts_active", alerts)
        running = [job for job in state.jobs.jobs.values() if job.is_running(now_ns)]
        yield from _by("fabrictime_jobs", Counter(job.newest.verdict for job in running))

    def _cable_counts(self) -> Mapping[LinkState, int]:
        """Return the number of cables by state. Counting a large fabric takes seconds, so that a result is
        returned again until `COUNT_SHARE` times the counting time has passed.
        """
        began_s = time.monotonic()
        if began_s >= self._next_cables_s:
            self._cables = self._state.cable_counts()
            self._next_cables_s = began_s + COUNT_SHARE * (time.monotonic() - began_s)
        return self._cables

    def _queues(self) -> Iterator[Sample]:
        queues = self._state.queues.all_newest().values()
        yield Sample("fabrictime_queue_max_bytes", max((queue.mean_bytes for queue in queues), default=0.0))
        delays_ns = (queue.delay_ns(queue.mean_bytes) for queue in queues)
        yield Sample("fabrictime_queue_delay_max_seconds", max(delays_ns, default=0.0) / NS_PER_S)

    def _policy(self, now_ns: int) -> Iterator[Sample]:
        actions = self._state.actions
        yield Sample("fabrictime_acting", actions.mode().act)
        yield Sample("fabrictime_policy_flows", sum(shard.flows for shard in actions.shards.values()))
        yield Sample("fabrictime_policy_movable_flows", sum(s.movable for s in actions.shards.values()))
        causes = (action.cause for action in actions.suppressed())
        suppressed = Counter(cause if cause in SUPPRESSED_BY else OTHER_CAUSE for cause in causes)
        yield from _by("fabrictime_suppressed_actions", suppressed)
        shares = dict.fromkeys(LIMITS.values(), 0.0)
        for used in limits_used(actions, now_ns):
            shares[LIMITS[used.limit]] = max(shares[LIMITS[used.limit]], used.share)
        yield from _by("fabrictime_action_budget_used_ratio", shares)

    def _links(self) -> Iterator[Sample]:
        state = self._state
        for number in state.plan().links:
            link = (state.cable_graph.name(number),)
            yield Sample("fabrictime_link_up", state.state(number) == UP, link)
            queue = state.queues.newest(number)
            if queue is None:
                continue
            yield Sample("fabrictime_link_queue_bytes", queue.mean_bytes, link)
            if queue.utilisation is not None:
                yield Sample("fabrictime_link_utilisation_ratio", queue.utilisation, link)


def _by(name: str, values: Mapping[Any, float]) -> Iterator[Sample]:
    """Yield a sample for each declared combination of labels; its value is 0 if `values` lacks the
    combination.

    The keys of `values` are label values, or tuples of them for several labels.
    """
    metric = METRIC_OF_SAMPLE[name]
    for labels in itertools.product(*(of_label for _, of_label in metric.labels)):
        yield Sample(name, values.get(labels if len(labels) > 1 else labels[0], 0), labels)
