"""The objects that all tabs of one page process share."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabrictime.web.history_reader import HistoryReader
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.query_poller import QueryPoller
from fabrictime.web.service_faults import ServiceFaults
from fabrictime.web.settings import WebSettings
from fabrictime.web.tabs.alerts.evidence import EvidenceReader
from fabrictime.web.tabs.fabric.queries import LinkQueries
from fabrictime.web.tabs.jobs.queries import JobQueries


@dataclass(frozen=True, slots=True)
class AppContext:
    """Settings, history and live state. Those that read the log are None without its address."""

    settings: WebSettings
    poller: QueryPoller
    history: HistoryReader
    live: LiveFabric | None = None
    links: LinkQueries | None = None
    evidence: EvidenceReader | None = None
    jobs: JobQueries | None = None
    services: ServiceFaults = field(default_factory=lambda: ServiceFaults(None))
    tabs: set[int] = field(default_factory=set)
