"""Decodes the records that make the actuator act, and checks their epochs and, where required, signatures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from actuators.journal import Journal
from schemas import codec
from schemas.kafka.message import Message
from schemas.records import ActionOutcome, ActionReport
from schemas.signing import ControlSettings
from schemas.topics import CONFIG, DECISIONS, FALLBACKS, R, Topic
from schemas.validation import check_epoch

REPEATED: Final = frozenset({ActionOutcome.STALE, ActionOutcome.DUPLICATE})
"""Outcomes of decisions that came before."""
_ORDER: Final = "order "
"""Beginning of the journal's names for the newest config of each key."""


class SignedInput:
    """Decodes messages. The journal keeps the newest config time, which excludes older config on restart."""

    def __init__(
        self,
        control: ControlSettings,
        journal: Journal,
        registry: codec.Registry | None,
        reject: Callable[[Message, codec.BadRecord], None],
    ) -> None:
        """Load the keys. `reject` publishes a `Reject`. Raises ValueError for unusable keys."""
        self._verifier, self._journal, self._registry = control.verifier(), journal, registry
        self._reject = reject
        if self._verifier is not None:
            self._verifier.newest = {
                name.removeprefix(_ORDER): (int(state["order"][0]), int(state["order"][1]))
                for name, state in journal.states.items()
                if name.startswith(_ORDER) and len(state.get("order", ())) == 2
            }

    def decoded(self, topic: Topic[R], message: Message) -> R | None:
        """Return the record of a message; None for a tombstone. Raises BadRecord."""
        if self._verifier is not None:
            self._verifier.check(message, self._registry)
            if topic.name == CONFIG.name:
                name = self._verifier.name_of(message)
                self._journal.save(f"{_ORDER}{name}", {"order": self._verifier.newest[name]})
        if message.value is None:
            return None
        record: Any = message.decoded(topic, self._registry)
        if topic.name in (DECISIONS.name, FALLBACKS.name):
            check_epoch(record, message.append_ns // 1_000_000)
        return cast("R", record)

    def reported(self, record: ActionReport, done: Any) -> None:
        """Reject the message of a signed decision that was already reported. `done`: the report's token."""
        if self._verifier is not None and isinstance(done, partial) and record["outcome"] in REPEATED:
            text = f"decision {record['decision_id']}: {record['outcome']}"
            self._reject(done.args[0], codec.BadRecord("REPLAYED", text))
