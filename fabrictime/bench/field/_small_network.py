"""A network of a few NICs, each in its own namespace and cabled to one bridge.

All parts can be removed and recreated. The NICs are of one host, so that a single `up` probes from all of
them. Each NIC has a test clock. The process must have entered the testbed's namespaces (`userns.enter`).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from fabrictime.testbed.processes import userns

BRIDGE: Final = "remade-bridge"
HOST: Final = "box"


class SmallNetwork:
    """NICs box/eth1, box/eth2 and so on, each at 10.77.0.N in the namespace remade-N."""

    def __init__(self, nics: int) -> None:
        self.numbers = range(1, nics + 1)
        self.bridge = userns.in_helper_thread(lambda: userns.new_netns(BRIDGE))
        self._ip(self.bridge, "link add br0 type bridge", "link set br0 up")
        self.spaces: dict[int, str] = {}
        for number in self.numbers:
            self.add_space(number)
            self.cable(number)

    def fleet(self) -> str:
        """Return the fleet file of the network."""
        rows = [
            f'[[nics]]\nhost = "{HOST}"\ndevice = "eth{number}"\naddress = "10.77.0.{number}"\n'
            f'netns = "{self.spaces[number]}"\nclock = {{ offset_ns = {number * 1_000_000} }}\n'
            for number in self.numbers
        ]
        return "\n".join(rows)

    def add_space(self, number: int) -> None:
        """Create the namespace of a NIC, under the same name as before a removal."""
        self.spaces[number] = userns.in_helper_thread(lambda: userns.new_netns(f"remade-{number}"))
        self._ip(self.spaces[number], "link set lo up")

    def remove_space(self, number: int) -> None:
        """Remove the namespace of a NIC, and its cable."""
        self._ip(self.bridge, f"link del port{number}")
        userns.remove_netns(self.spaces[number])

    def cable(self, number: int) -> None:
        """Add the device of a NIC with its address, and connect it to the bridge."""
        space = self.spaces[number]
        self._ip(
            self.bridge,
            f"link add port{number} type veth peer name eth{number} netns {Path(space).name}",
            f"link set port{number} master br0",
            f"link set port{number} up",
        )
        self._ip(space, f"addr add 10.77.0.{number}/24 dev eth{number}", f"link set eth{number} up")

    def remove_device(self, number: int) -> None:
        """Remove the device of a NIC, and with it its cable."""
        self._ip(self.spaces[number], f"link del eth{number}")

    def rename(self, number: int, before: str, after: str) -> None:
        """Rename a device in a NIC's namespace."""
        self._ip(self.spaces[number], f"link set {before} name {after}")

    def take_down(self, number: int, state: str) -> None:
        """Set the device of a NIC `down` or `up`, as an administrator would."""
        self._ip(self.spaces[number], f"link set eth{number} {state}")

    def close(self) -> None:
        """Remove all namespaces."""
        for space in (*self.spaces.values(), self.bridge):
            userns.remove_netns(space)

    def _ip(self, space: str, *commands: str) -> None:
        def run() -> None:
            for command in commands:
                subprocess.run(["ip", *command.split()], check=True, capture_output=True)

        userns.in_netns(space, run)
