"""One host's decisions, applied once and reported: what may be done, what is too late, what was done already.

In: messages of `fabric.decisions`, the records of `fabric.config`, an effector. Out: an `ActionReport` for
each decision of this host. A flow's newest (epoch, seq) fences off older ones, and so does a shard's newest
epoch: a worker that came back and still believes that it owns the policy moves nothing. Knows no Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from schemas import codec
from schemas.limits import Limits
from schemas.topics import ACTIONS, DECISIONS

__all__ = ["Applier", "Effector"]

Record = dict[str, Any]
Fence = tuple[int, int]

NAMED: Final = ("decision_id", "shard", "epoch", "seq", "flow_id", "action")
"""What a report repeats of its decision."""
MOVES: Final = frozenset({"REROUTE", "RESTORE"})


class Effector(Protocol):
    """What moves flows of one kind."""

    def path_of(self, flow_id: str) -> int | None:
        """Return a flow's entropy value, None where there is no such open flow."""

    def move(self, flow_id: str, path: int) -> None:
        """Let a flow go on by another path. Raises ValueError."""


class Applier:
    """The decisions of one host. `clock_ns`: a clock for how long the effector takes."""

    def __init__(self, host: str, effector: Effector, clock_ns: Callable[[], int]) -> None:
        self.host = host
        self._effector, self._clock_ns = effector, clock_ns
        self._limits = Limits()
        self._epochs: dict[str, int] = {}
        self._fences: dict[str, tuple[Fence, str]] = {}
        """Flow to the newest decision taken for it, and what came of that."""

    def take_config(self, records: Mapping[str, Record]) -> None:
        """Take the records of `fabric.config` in force, by key."""
        self._limits = Limits.of(records, self.host)

    def take(
        self, key: bytes | None, value: bytes | None, now_ns: int, registry: codec.Registry | None = None
    ) -> bytes | None:
        """Take one message at `now_ns`, fabric time; return the report to publish on `fabric.actions`, None
        where it is another host's. Raises BadRecord."""
        if value is None:
            return None
        decision = codec.decode(value, DECISIONS.record, registry)
        if key != decision["host"].encode():
            raise codec.BadRecord("WRONG_KEY", f"key {key!r}, expected the record's {decision['host']!r}")
        if decision["host"] != self.host:
            return None
        return codec.encode(ACTIONS.record, self._report(decision, now_ns), registry)

    def _report(self, decision: Record, now_ns: int) -> Record:
        flow_id = decision["flow_id"]
        before = self._effector.path_of(flow_id)
        outcome, detail, took_ns = self._judge(decision, before, now_ns), "", 0
        if not outcome:
            outcome, detail, took_ns = self._apply(decision, before)
        if outcome not in ("STALE", "DUPLICATE"):
            self._epochs[decision["shard"]] = decision["epoch"]
            self._fences[flow_id] = (_fence(decision), outcome)
        if outcome == "NO_FLOW":
            self._fences.pop(flow_id, None)
        after = self._effector.path_of(flow_id)
        return {
            **{name: decision[name] for name in NAMED},
            "host": self.host, "at_ns": now_ns + took_ns, "outcome": outcome, "from_path": before,
            "to_path": after, "rate_bps": None, "how": "", "took_ns": took_ns,
            "config_version": self._limits.version, "detail": detail,
        }  # fmt: skip

    def _judge(self, decision: Record, path: int | None, now_ns: int) -> str:
        """Return why a decision is not applied, empty where it is."""
        fence, past = self._fences.get(decision["flow_id"], ((-1, -1), ""))
        if _fence(decision) < fence or decision["epoch"] < self._epochs.get(decision["shard"], 0):
            return "STALE"
        if _fence(decision) == fence:
            return "DUPLICATE" if past == "APPLIED" else past
        if path is None:
            return "NO_FLOW"
        if now_ns >= decision["expires_at_ns"]:
            return "EXPIRED"
        if decision["config_version"] != self._limits.version:
            return "OLD_CONFIG"
        if decision["action"] not in self._limits.allowed:
            return "NOT_ALLOWED"
        return "" if self._limits.act else "OBSERVED"

    def _apply(self, decision: Record, path: int | None) -> tuple[str, str, int]:
        """Carry a decision out; return what came of it, a line about that, ns that it took."""
        if decision["action"] not in MOVES or decision["to_path"] is None:
            return "FAILED", f"{decision['action']}: nothing here carries it out", 0
        began_ns = self._clock_ns()
        try:
            if path != decision["to_path"]:
                self._effector.move(decision["flow_id"], decision["to_path"])
        except ValueError as error:
            return "FAILED", str(error), self._clock_ns() - began_ns
        return "APPLIED", "", self._clock_ns() - began_ns


def _fence(decision: Record) -> Fence:
    return decision["epoch"], decision["seq"]
