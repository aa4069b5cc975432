"""Settings of the service: values that are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from producers.collectives.settings import CollectiveSettings


@pytest.mark.parametrize("ras", ["auto", "off", "127.0.0.1:28028", "[::1]:1"])
def test_addresses_of_ras(ras):
    assert CollectiveSettings(socket="s", ras=ras).ras == ras


@pytest.mark.parametrize("ras", ["on", "host", "host:0", "host:65536", "host:1 2", ""])
def test_other_values_of_ras_are_refused(ras):
    with pytest.raises(ValidationError, match="ras"):
        CollectiveSettings(socket="s", ras=ras)
