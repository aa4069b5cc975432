"""The network of the bench: its NICs reach each other, also after a device or namespace was made again."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from fabrictime.bench.field._small_network import SmallNetwork
from fabrictime.runtime.fleet import file_nics
from fabrictime.testbed.processes import userns


def test_nics_reach_each_other_whatever_was_made_again(inside: Callable[..., Any], tmp_path: Any) -> None:
    def body() -> tuple[list[bool], list[str]]:
        network = SmallNetwork(2)
        reached = []

        def connect() -> None:
            first, second = network.spaces[1], network.spaces[2]
            with userns.in_netns(first, lambda: socket.create_server(("10.77.0.1", 0))) as server:
                address = server.getsockname()
                userns.in_netns(second, lambda: socket.create_connection(address, 10)).close()
                reached.append(True)

        connect()
        network.remove_device(2)
        network.cable(2)
        connect()
        network.remove_space(2)
        network.add_space(2)
        network.cable(2)
        connect()
        network.rename(2, "eth2", "enp9s0")
        network.rename(2, "enp9s0", "eth2")
        fleet = tmp_path / "fleet.toml"
        fleet.write_text(network.fleet())
        names = [f"{nic.host}/{nic.device}" for nic in file_nics(fleet)]
        network.close()
        return reached, names

    assert inside(body) == ([True, True, True], ["box/eth1", "box/eth2"])
