"""The metrics of the flow actuator: flows, actions in force, and the results of all actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from actuators.effectors.endpoints import FlowEndpoints
from actuators.flows.applier import Applier
from schemas.metrics.agent import RESULTS, ActionResult
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES


class FlowMetrics:
    """Reads the metrics of the flow actuator from its objects, until `close`."""

    def __init__(
        self, endpoints: FlowEndpoints, appliers: Collection[Applier], reports: Mapping[str, int]
    ) -> None:
        """Keep the metrics' sources. `reports`: number of reports so far, by outcome."""
        self._endpoints, self._appliers, self._reports = endpoints, appliers, reports
        SOURCES.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield the present value of each metric."""
        yield Sample("fabrictime_flows", self._endpoints.flows())
        yield Sample("fabrictime_actions_in_force", sum(applier.in_force for applier in self._appliers))
        counts = Counter(dict.fromkeys(ActionResult, 0))
        for outcome, count in self._reports.items():
            counts[RESULTS.get(outcome, ActionResult.REFUSED)] += count
        for result, count in counts.items():
            yield Sample("fabrictime_actions_total", count, (result,))

    def close(self) -> None:
        """Read the metrics for the last time, and end their publication."""
        SOURCES.remove(self.samples)
