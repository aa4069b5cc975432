"""Derives the rails of a host's fabric NICs from their addresses or names, where these show the rails."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final

from schemas.ids import natural

_RAIL_NAME: Final = re.compile(r"(?:rail|gpu|ib)[_-]?(\d{1,4})(?!\d)")
"""Names such as rail3, gpu3rdma0 and ib3, which state a rail."""


def rails_of(addresses: Mapping[str, str], unused: Collection[str] = ()) -> dict[str, int]:
    """Return the rail of each device; empty if names and addresses do not show rails.

    `addresses` is the address by device. Names come first, because an operator chose them. `unused` are
    devices of the same kind that are down or have no address, but have a rail in the series.
    """
    if len(addresses) < 2:
        return {}
    return _rails_by_name(list(addresses)) or _rails_by_address(addresses, unused)


def _rails_by_name(devices: list[str]) -> dict[str, int]:
    matches = {device: _RAIL_NAME.match(device) for device in devices}
    rails = {device: int(match[1]) for device, match in matches.items() if match}
    return rails if len(rails) == len(devices) == len(set(rails.values())) else {}


def _rails_by_address(addresses: Mapping[str, str], unused: Collection[str]) -> dict[str, int]:
    """Return the rail of each device: the index of its address in an even series, such as 10.0.R.17 or
    10.R.4.17.

    Exactly one byte differs, and its values have equal distances. A byte of the host's part is no rail unless
    the distance is at least 2 (networks of two addresses): a series with distance 1 is one network. An unused
    device counts if the distances fit the indices of all devices in the order of their names.
    """
    packed = {device: ipaddress.ip_address(address).packed for device, address in addresses.items()}
    sizes = {len(value) for value in packed.values()}
    if len(sizes) != 1:
        return {}
    size = sizes.pop()
    places = [index for index in range(size) if len({value[index] for value in packed.values()}) > 1]
    if len(places) != 1:
        return {}
    values = {device: value[places[0]] for device, value in packed.items()}
    min_step = 2 if places[0] == size - 1 else 1
    by_name = sorted({*addresses, *unused}, key=natural)
    by_value = sorted(values, key=values.__getitem__)
    return _even(by_name, values, min_step) or _even(by_value, values, min_step)


def _even(devices: Sequence[str], values: Mapping[str, int], min_step: int) -> dict[str, int]:
    """Return the index in `devices` of each device with a value, if the values grow evenly with the index."""
    rails = {device: rail for rail, device in enumerate(devices) if device in values}
    steps = {
        Fraction(values[after] - values[before], rails[after] - rails[before])
        for before, after in pairwise(rails)
    }
    return rails if len(steps) == 1 and steps.pop() >= min_step else {}
