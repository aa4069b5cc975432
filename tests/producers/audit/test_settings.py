"""Settings of the auditors."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from producers.audit.settings import AuditSettings, TrafficSettings


def test_the_defaults_run_hourly() -> None:
    settings = AuditSettings()
    assert (settings.every_s, settings.first_run_s, settings.sku) == (3600, 60, "")


def test_traffic_is_small_by_default() -> None:
    traffic = AuditSettings().traffic
    assert traffic.seconds <= 2
    assert traffic.rate_mbps <= 1000
    with pytest.raises(ValidationError):
        TrafficSettings(seconds=11)


@pytest.mark.parametrize("given", [{"every_s": -1}, {"hosts_at_once": 0}, {"hourly": True}])
def test_wrong_settings_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AuditSettings.model_validate(given)
