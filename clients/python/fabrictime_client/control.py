"""The actuator's connection: announces flows, and receives the commands to move and pace them.

`FlowEndpoint` uses it for sockets, `rdma.QueuePairs` for queue pairs; it also suits flows of other kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

from fabrictime_client._connection import AgentConnection

__all__ = ["Command", "ControlConnection"]

_NUMBER_DIGITS = 19
_FAILED_CHARS = 400


@dataclass(frozen=True)
class Command:
    """A command to move a flow to source port `value` (MOVE), or pace it at `value` bit/s (PACE; 0: off)."""

    verb: str
    number: int
    key: str
    value: int
    host: str | None


class ControlConnection(AgentConnection):
    """Announces flows and receives commands. It must answer each command once: by `done` or `failed`."""

    def announce(self, key: str, source_port: int, verbs: Iterable[str], host: str | None = None) -> None:
        """Announce a new or changed flow at the next `flush`."""
        host_field = _host_field(host)
        line = "FLOW %s %d %s%s" % (key, source_port, ",".join(verbs) or "-", host_field)
        self.publish(key + host_field, line)

    def retire(self, key: str, host: str | None = None) -> None:
        """Report the end of a flow."""
        name = key + _host_field(host)
        self.withdraw(name, "GONE " + name)

    def done(self, number: int, value: int, how: str) -> None:
        """Answer a command with the present source port or rate, bit/s, and the method used."""
        self.send("DONE %d %d %s" % (number, value, how))

    def failed(self, number: int, reason: str) -> None:
        """Answer a command that had no effect."""
        self.send("FAILED %d %s" % (number, " ".join(reason.split())[:_FAILED_CHARS]))

    def commands(self) -> list[Command]:
        """Exchange all lines that are due; return the received commands and refuse invalid lines."""
        commands = []
        for line in self.exchange():
            fields = line.split(" ")
            if fields[0] == "ERROR":
                self.note_refusals([line])
            elif len(fields) not in (4, 5) or fields[0] not in ("MOVE", "PACE") or not _numbers(fields[1::2]):
                self.send("ERROR expected MOVE or PACE, id, key and value, not %s" % line[:80])
            elif fields[0] == "MOVE" and not 0 < int(fields[3]) < 65536:
                self.failed(int(fields[1]), "source port %s: expected 1 to 65535" % fields[3])
            else:
                host = fields[4] if len(fields) == 5 else None
                commands.append(Command(fields[0], int(fields[1]), fields[2], int(fields[3]), host))
        return commands


def _host_field(host: str | None) -> str:
    return "" if host is None else " " + host


def _numbers(fields: list[str]) -> bool:
    return all(field.isdecimal() and len(field) <= _NUMBER_DIGITS for field in fields)
