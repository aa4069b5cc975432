"""One run of `fabrictime up`: its settings, its fleet, and the services that it starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabrictime.metrics.export import Exports, build_samples
from fabrictime.metrics.processes import SOCKET_VARIABLE, HostMetrics
from fabrictime.runtime import status
from fabrictime.runtime.config import Config, in_url
from fabrictime.runtime.holder import boot_s
from schemas.metrics.sources import SOURCES

if TYPE_CHECKING:
    from fabrictime.testbed.fabric.fabric import Fabric
    from producers.settings import NicSettings


@dataclass
class Run:
    """One run of `up`: its settings, its fleet and its open resources."""

    config: Config
    directory: Path
    for_s: float | None
    as_json: bool
    fleet: str = "none"
    listed: bool = False
    """Whether a fleet file lists the NICs."""
    nics: list[NicSettings] = field(default_factory=list)
    fabric: Fabric | None = None
    started_s: float = field(default_factory=time.time)
    started_boot_s: float = field(default_factory=boot_s)
    """The same by the clock since the boot, which never steps."""
    metrics_sockets: dict[str, Path] = field(default_factory=dict)
    """Maps child to the socket on which it answers with its metrics."""
    services: dict[str, str] = field(default_factory=dict)
    """Maps child to the kind of its service."""
    metrics_url: str | None = None
    """Address of the metrics of all processes."""
    lock: status.Lock | None = None

    def metrics_environment(self, name: str, kind: str) -> dict[str, str]:
        """Return environment variables that make a child serve its metrics. `kind`: kind of its service."""
        path = self.directory / "run" / "metrics" / f"{name.replace('/', '-')}.sock"
        self.metrics_sockets[name], self.services[name] = path, kind
        return {SOCKET_VARIABLE: str(path)}

    def export(self, snapshot: Callable[[], Sequence[Mapping[str, Any]]]) -> Exports:
        """Export the metrics of all processes. `snapshot` returns the supervisor's rows, one per process."""
        exports = Exports()
        settings = self.config.metrics
        if settings.enabled:
            SOURCES.details = settings.details
            host = HostMetrics(snapshot, self.metrics_sockets, self.services)
            exports.close_also(host.close)
            exports.open(settings, lambda: [*host.collect(), *build_samples()])
            self.metrics_url = exports.url
        return exports

    @property
    def truth_known(self) -> bool:
        """Whether the NICs have test clocks, so that measured offsets can be compared with true offsets."""
        has_truth = self.fabric is not None or self.simulated
        return has_truth and any(nic.clock is not None for nic in self.nics)

    @property
    def simulated(self) -> bool:
        """Whether the fleet is simulated, so that one service replaces the agents of all hosts."""
        return self.fleet == "sim"

    @property
    def agent_only(self) -> bool:
        """Whether only the agent's services run here; others run elsewhere, once for all hosts."""
        up = self.config.up
        return up.services == "off" or (up.services == "auto" and self.listed and up.log_url is not None)

    @property
    def follows_fleet(self) -> bool:
        """Whether this run reads the fleet's records, for live table or scorecard; an agent does not."""
        return not self.agent_only or self.for_s is not None

    @property
    def own_shards(self) -> tuple[str, ...]:
        """The shards to which an agent limits the evidence it reads; empty if it reads the whole fleet's."""
        return tuple(sorted({nic.shard for nic in self.nics})) if self.agent_only else ()

    @property
    def data_folders(self) -> list[Path]:
        """The data folders of the log and of the history, as far as they run on this machine."""
        up = self.config.up
        folders = [] if up.log_url is not None else [self.config.log.directory]
        own_history = up.history_url is None and not self.agent_only
        return [*folders, self.config.history.directory] if own_history else folders

    @property
    def has_history(self) -> bool:
        """Whether the history runs on this machine or has a known URL."""
        return not self.agent_only or self.config.up.history_url is not None

    @property
    def web_url(self) -> str | None:
        """The web page's address; None if no page is served here."""
        if not self.config.up.web or self.agent_only:
            return None
        return f"{self.config.web.scheme}://{in_url(self.config.web.host)}:{self.config.web.port}/"

    def addresses(self) -> dict[str, str]:
        """Return the address of each service, by name."""
        addresses = {"log": self.config.bootstrap}
        if self.metrics_url is not None:
            addresses["metrics"] = self.metrics_url
        if self.has_history:
            addresses["history"] = self.config.history_url
        if self.config.up.clock_pages and self.nics and not self.simulated:
            addresses["clock"] = str(self.directory / "run" / "clock")
        return addresses if self.web_url is None else {"web": self.web_url, **addresses}
