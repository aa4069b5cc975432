"""Reads RDMA devices of a support bundle, from ibstatus, ibstat, ibv_devinfo and ibdev2netdev.

Each function returns texts of sysfs files by path. Values that the outputs of these tools lack stay unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from producers.audit.backend.rdma_ports import DEVICES

_PORT: Final = re.compile(r"^Infiniband device '([^']+)' port (\d+) status:", re.MULTILINE)
_ADAPTER: Final = re.compile(r"^CA '([^']+)'", re.MULTILINE)
_HCA: Final = re.compile(r"^\s*hca_id:\s*(\S+)", re.MULTILINE)
_INTERFACE: Final = re.compile(r"^(\S+) port (\d+) ==> (\S+) ", re.MULTILINE)
_FIELD: Final = re.compile(r"^\s*([\w ]+?):[ \t]+(\S.*?)\s*$", re.MULTILINE)
PORT_FILES: Final[Mapping[str, str]] = {
    "state": "state",
    "phys state": "phys_state",
    "rate": "rate",
    "link_layer": "link_layer",
    "base lid": "lid",
    "sm lid": "sm_lid",
}
"""Files of a port, by their names in ibstatus, which prints their text."""
DEVICE_FILES: Final = ("fw_ver", "node_guid", "sys_image_guid", "board_id")
"""Files of a device that ibv_devinfo prints under the same names."""


def ibstatus_files(text: str) -> dict[str, str]:
    """Return state, rate and link layer of each port in the output of ibstatus."""
    parts = _PORT.split(text)
    return {
        f"{DEVICES}/{device}/ports/{number}/{PORT_FILES[name]}": value
        for device, number, part in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        for name, value in _FIELD.findall(part)
        if name in PORT_FILES
    }


def ibstat_files(text: str) -> dict[str, str]:
    """Return the type of each device in the output of ibstat."""
    parts = _ADAPTER.split(text)
    return {
        f"{DEVICES}/{device}/hca_type": value
        for device, part in zip(parts[1::2], parts[2::2], strict=True)
        for name, value in _FIELD.findall(part)
        if name == "CA type"
    }


def ibv_devinfo_files(text: str) -> dict[str, str]:
    """Return firmware, GUIDs and board of each device in the output of ibv_devinfo."""
    parts = _HCA.split(text)
    return {
        f"{DEVICES}/{device}/{name}": value
        for device, part in zip(parts[1::2], parts[2::2], strict=True)
        for name, value in _FIELD.findall(part)
        if name in DEVICE_FILES
    }


def ibdev2netdev_files(text: str) -> dict[str, str]:
    """Return the network interface of each port in the output of ibdev2netdev."""
    return {
        f"{DEVICES}/{device}/ports/{number}/gid_attrs/ndevs/0": interface
        for device, number, interface in _INTERFACE.findall(text)
    }
