"""Settings of the metrics: HTTP endpoint, level of detail, OTLP push."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from schemas.metrics.base import Detail
from schemas.strict_model import StrictModel, quantity

DEFAULT_PORT: Final = 8481


class MetricsSettings(StrictModel):
    """Metrics for Prometheus and OpenTelemetry: one endpoint per `up`, and one per service without it."""

    enabled: bool = Field(True, description="whether to export metrics")
    host: str = Field("127.0.0.1", description="address on which the endpoint listens")
    port: int | None = quantity(
        None,
        (0, 65535),
        f"TCP port; 0: any free one; without it {DEFAULT_PORT}, or a free one if it is taken",
    )
    per_nic: bool = Field(False, description="whether to export series of each NIC as well")
    per_link: bool = Field(False, description="whether to export series of each directed link as well")
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        examples=["http://127.0.0.1:4318/v1/metrics"],
        description="address to which metrics are also pushed by OTLP over HTTP; needs the extra `otlp`",
    )
    otlp_interval_s: float = quantity(60.0, (1, 3600), "s between two pushes")

    @property
    def details(self) -> frozenset[Detail]:
        """The levels of detail that are switched on, beside the metrics that are always exported."""
        switches = {Detail.PER_NIC: self.per_nic, Detail.PER_LINK: self.per_link}
        return frozenset(detail for detail, is_on in switches.items() if is_on)
