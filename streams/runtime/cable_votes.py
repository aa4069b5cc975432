"""Counts the NICs whose traces name each cable, and doubts a cable that one NIC names against all others.

A port has one cable. Suppose that two or more NICs name one cable at a port, and a single NIC another. Then
the single NIC is wrong, or it is the first to see a new cable: the next NIC decides. A switch that answers
from one address has one name for many ports. Two cables at a port, each named by two NICs, reveal such a
switch, and no cable of its port is doubted. This module is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from schemas.ids import cable_ends, end_parts

CONFIRMING_NICS: Final = 2
"""Number of NICs that must name a cable before it counts as confirmed."""
UNKNOWN_PORT: Final = "?"


class CableVotes:
    """Counts the NICs that name each cable.

    `doubted` holds cables that only one NIC names, at a port with exactly one confirmed cable.
    """

    def __init__(self) -> None:
        self.doubted: set[str] = set()
        self._records: dict[str, Counter[str]] = {}
        """Maps cable to NIC to the number of that NIC's records that name the cable."""
        self._cables_at: dict[str, set[str]] = {}
        self._confirmed_at: Counter[str] = Counter()
        """Maps port to the number of confirmed cables at it."""

    def nics_of(self, cable: str) -> Collection[str]:
        """Return the NICs whose traces name a cable."""
        return self._records.get(cable, {}).keys()

    def replace(self, nic: str, before: Collection[str], now: Collection[str]) -> set[str]:
        """Replace the cables that a NIC's record names; return the cables whose doubt begins or ends."""
        touched: set[str] = set()
        for cable in before:
            if cable not in now:
                self._remove(nic, cable, touched)
        for cable in now:
            if cable not in before:
                self._add(nic, cable, touched)
        return self._doubt(touched)

    def _add(self, nic: str, cable: str, touched: set[str]) -> None:
        of_nic = self._records.get(cable)
        if of_nic is None:
            of_nic = self._records[cable] = Counter()
            for port in _ports(cable):
                self._cables_at.setdefault(port, set()).add(cable)
        of_nic[nic] += 1
        if of_nic[nic] == 1:
            touched.add(cable)
            if len(of_nic) == CONFIRMING_NICS:
                self._confirm(cable, 1, touched)

    def _remove(self, nic: str, cable: str, touched: set[str]) -> None:
        of_nic = self._records[cable]
        of_nic[nic] -= 1
        if of_nic[nic]:
            return
        del of_nic[nic]
        touched.add(cable)
        if len(of_nic) == CONFIRMING_NICS - 1:
            self._confirm(cable, -1, touched)
        if not of_nic:
            del self._records[cable]
            for port in _ports(cable):
                self._cables_at[port].discard(cable)
                if not self._cables_at[port]:
                    del self._cables_at[port]

    def _confirm(self, cable: str, by: int, touched: set[str]) -> None:
        for port in _ports(cable):
            self._confirmed_at[port] += by
            touched |= self._cables_at[port]
            if not self._confirmed_at[port]:
                del self._confirmed_at[port]

    def _doubt(self, touched: Iterable[str]) -> set[str]:
        changed = {cable for cable in touched if self._is_contradicted(cable) != (cable in self.doubted)}
        self.doubted ^= changed
        return changed

    def _is_contradicted(self, cable: str) -> bool:
        nics = len(self._records.get(cable, ()))
        return 0 < nics < CONFIRMING_NICS and any(self._confirmed_at[port] == 1 for port in _ports(cable))


def _ports(cable: str) -> list[str]:
    """Return the ends of a cable whose port is known."""
    return [end for end in cable_ends(cable) if end_parts(end).port != UNKNOWN_PORT]
