"""Rails of a host's NICs, as addresses and names show them."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.install.rails import rails_of


@pytest.mark.parametrize(
    ("addresses", "rails"),
    [
        ({"eth2": "10.0.0.17", "eth3": "10.0.1.17", "eth4": "10.0.2.17"}, [0, 1, 2]),
        ({"eth2": "10.16.4.9", "eth3": "10.17.4.9"}, [0, 1]),
        ({"eth2": "10.1.17.0", "eth3": "10.1.17.2", "eth4": "10.1.17.4"}, [0, 1, 2]),
        ({"a": "fd00:0:0:3::11", "b": "fd00:0:0:1::11", "c": "fd00:0:0:2::11"}, [2, 0, 1]),
        ({"rail1": "10.0.9.1", "rail0": "10.3.0.1"}, [1, 0]),
        ({"gpu0rdma0": "10.0.0.1", "gpu7rdma0": "10.4.3.9"}, [0, 7]),
        ({"ib0": "10.0.0.1", "ib1": "10.0.0.2"}, [0, 1]),
    ],
)
def test_rails_that_addresses_or_names_show(addresses, rails):
    assert rails_of(addresses) == dict(zip(addresses, rails, strict=True))


@pytest.mark.parametrize(
    "addresses",
    [
        {"eth2": "10.0.0.17"},
        {"eth2": "10.0.0.17", "eth3": "10.0.0.18"},  # two hosts of one network
        {"eth2": "10.0.0.17", "eth3": "10.0.1.18"},  # two bytes differ
        {"eth2": "10.0.0.17", "eth3": "10.0.1.17", "eth4": "10.0.9.17"},  # no even series
        {"eth2": "10.0.0.17", "eth3": "fd00::1"},
        {"gpu0rdma0": "10.0.0.17", "gpu0rdma1": "10.0.7.18"},  # one number for two NICs
    ],
)
def test_no_rails_where_nothing_shows_them(addresses):
    assert rails_of(addresses) == {}


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2),
    st.integers(2, 8),
    st.integers(1, 16),
    st.randoms(use_true_random=False),
)
def test_a_series_of_networks_gives_each_nic_its_place(base, place, count, step, random):
    first = random.randrange(256 - (count - 1) * step)
    shift = 8 * (3 - place)
    host = base & ~(0xFF << shift)
    nics = {
        f"eth{index}": str(ipaddress.IPv4Address(host | (first + index * step) << shift))
        for index in range(count)
    }
    devices = list(nics)
    random.shuffle(devices)
    assert rails_of({device: nics[device] for device in devices}) == {
        device: int(device.removeprefix("eth")) for device in nics
    }


@given(st.integers(3, 8), st.integers(1, 16), st.data())
def test_a_nic_that_is_down_keeps_its_place(count, step, data):
    down = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 2))
    addresses = {f"eth{n}": f"10.0.{n * step}.17" for n in range(count) if n not in down}
    rails = rails_of(addresses, [f"eth{n}" for n in down])
    assert rails == {device: int(device.removeprefix("eth")) for device in addresses}


def test_a_nic_that_does_not_fit_the_series_is_left_out():
    addresses = {"eth0": "10.0.0.17", "eth2": "10.0.1.17", "eth3": "10.0.2.17"}
    assert rails_of(addresses, ["eth1"]) == {"eth0": 0, "eth2": 1, "eth3": 2}
