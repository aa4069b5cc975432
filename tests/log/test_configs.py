"""Configurations of topics: described with their overrides, replaced or only checked."""

from __future__ import annotations

import pytest

from fabrictime.log.errors import Code
from fabrictime.log.requests.configs import ConfigRequests

TOPIC, BROKER = 2, 4


@pytest.fixture
def configs(harness):
    """Make the requests inside the running loop."""
    return lambda: ConfigRequests(harness().store)


def describe(requests, name, kind=TOPIC, names=None):
    resource = {"resource_type": kind, "resource_name": name, "config_names": names}
    [found] = requests.describe_configs(0, {"resources": [resource]})["resources"]
    values = {
        each["config_names"]: (each["config_value"], each["is_default"]) for each in found["config_entries"]
    }
    return found["error_code"], values


def alter(requests, name, only_check=False, kind=TOPIC, **config):
    entries = [{"config_name": key.replace("_", "."), "config_value": value} for key, value in config.items()]
    resource = {"resource_type": kind, "resource_name": name, "config_entries": entries}
    [found] = requests.alter_configs(0, {"resources": [resource], "validate_only": only_check})["resources"]
    return found["error_code"]


async def test_an_override_is_in_force_until_the_next_set_replaces_all(configs):
    requests = configs()
    assert alter(requests, "t", retention_ms="5000") == Code.NONE
    assert describe(requests, "t", names=["retention.ms"]) == (Code.NONE, {"retention.ms": ("5000", False)})
    assert alter(requests, "t", retention_bytes="9") == Code.NONE
    assert describe(requests, "t", names=["retention.ms"])[1]["retention.ms"][1]


async def test_a_check_changes_nothing_and_refuses_as_a_change_would(configs):
    requests = configs()
    assert alter(requests, "t", only_check=True, retention_ms="5000") == Code.NONE
    assert describe(requests, "t", names=["retention.ms"])[1]["retention.ms"][1]
    for only_check in (True, False):
        assert alter(requests, "t", only_check=only_check, retention_ms="soon") == Code.INVALID_CONFIG


async def test_only_topics_that_exist_are_described_and_changed(configs):
    requests = configs()
    assert describe(requests, "none") == (Code.UNKNOWN_TOPIC_OR_PARTITION, {})
    assert alter(requests, "none", retention_ms="1") == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(requests, "1", kind=BROKER, retention_ms="1") == Code.INVALID_REQUEST
    assert describe(requests, "x", kind=9)[0] == Code.INVALID_REQUEST
    code, values = describe(requests, "1", kind=BROKER)
    assert code == Code.NONE
    assert all(default for _, default in values.values())
