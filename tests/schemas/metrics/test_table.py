"""The table of metrics keeps Prometheus' conventions, its bounds, and the names that other tables define."""

import re

import pytest

from fabrictime.metrics.sizing import AGENT_SERVICES, FleetSize, series_of
from fabrictime.runtime.service import SERVICES
from schemas.metrics.base import Detail, Kind
from schemas.metrics.common import AGENT, CONTROL_PLANE, UP
from schemas.metrics.control_plane import STAGES
from schemas.metrics.table import METRICS
from streams.app import STAGES as STAGE_CLASSES

BASE_UNITS = ("seconds", "bytes", "ratio")
FOREIGN_UNITS = re.compile(r"_(?:ms|us|ns|s|kb|mb|milliseconds|percent|bits)(?:_|$)")
NAMES_OF_THINGS = {"nic", "link"}
FORBIDDEN_LABELS = {"job", "pod", "path", "flow", "host", "tenant", "shard", "instance"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
class TestMetric:
    def test_name_and_unit_are_those_of_prometheus(self, metric):
        assert re.fullmatch(r"fabrictime_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
        assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
        assert not FOREIGN_UNITS.search(metric.name)
        assert metric.unit
        base = metric.name.removesuffix("_total")
        for unit in BASE_UNITS:
            assert (metric.unit == unit) == base.endswith(unit), "a base unit is the suffix of the name"

    def test_help_is_one_sentence(self, metric):
        assert re.fullmatch(r"[A-Z0-9][^\n]{5,}[^.]\.", metric.help)

    def test_no_label_carries_a_name_unless_a_setting_asks_for_it(self, metric):
        names = set(metric.label_names)
        assert not names & FORBIDDEN_LABELS
        unlisted = {name for name, values in metric.labels if not values}
        assert unlisted <= NAMES_OF_THINGS
        assert bool(unlisted) == (metric.detail is not Detail.ALWAYS)

    def test_its_writers_are_services(self, metric):
        assert set(metric.writers) <= {*SERVICES, *UP}


def test_each_name_is_declared_once():
    names = [name for metric in METRICS for name in metric.sample_names]
    assert len(names) == len(set(names))


def test_services_and_stages_are_those_of_their_tables():
    assert {*AGENT, *CONTROL_PLANE} == set(SERVICES)
    assert set(STAGES) == {stage.name for _, stage in STAGE_CLASSES} | {"history"}


def test_series_are_bounded():
    assert series_of(AGENT_SERVICES) <= 40
    assert FleetSize(1, 8, 0, workers=8, embedded=True).series()["of the control plane"] <= 1_500


def test_a_fleet_grows_with_hosts_and_only_by_choice_with_nics_and_links():
    small, large = FleetSize(1, 8, 100), FleetSize(10, 64, 100_000)
    assert large.default_total() - small.default_total() == 9 * series_of(AGENT_SERVICES)
