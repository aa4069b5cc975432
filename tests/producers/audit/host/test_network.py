"""The gateway among a host's routes, and an interface's state."""

from __future__ import annotations

from dataclasses import replace

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.host.network import Route, gateway_of


def test_the_default_route_with_the_smallest_metric_is_the_gateway() -> None:
    routes = HEALTHY.routes()
    found = gateway_of([Route("0.0.0.0/0", "10.0.0.9", "eth0", metric=200), *routes])
    assert found is not None
    assert (found.gateway, found.interface) == ("192.168.4.1", "eno1")
    assert gateway_of(routes, is_ipv6=True) is None
    assert gateway_of([replace(found, table=100)]) is None


def test_an_interface_without_carrier_is_not_up() -> None:
    interface = HEALTHY.interfaces()[1]
    assert interface.is_up
    assert not replace(interface, flags=interface.flags - {"LOWER_UP"}).is_up
