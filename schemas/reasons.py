"""The typed reason of an action, for `Decision.reason` and the suppressed actions of a policy cycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from schemas import records
from schemas.ids import window_parts


class Reason(NamedTuple):
    """A reference to the record that caused an action; the reason's kind is stored separately.

    `str` returns a short text: the window's id, or the subject with its sequence number.
    """

    subject: str = ""
    """Cable, NIC or host of a LinkHealth; link of a ContentionWindow; flow of a DELAY; group of a SLICE."""
    seq: int | None = None
    """Sequence number of the LinkHealth."""
    window_id: str | None = None
    """Id of the ContentionWindow."""

    @classmethod
    def of_window(cls, window_id: str) -> Self:
        """Return the reason that refers to a contention window."""
        try:
            link = window_parts(window_id).link
        except ValueError:
            link = ""
        return cls(link, None, window_id)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the `Reason` that a `Reason` record describes."""
        return cls(record["subject"], record["seq"], record["window_id"])

    def record(self, kind: records.ReasonKind) -> records.Reason:
        """Return this reason as a `Reason` record of the given kind."""
        return {"kind": kind, "subject": self.subject, "seq": self.seq, "window_id": self.window_id}

    def __str__(self) -> str:
        if self.window_id is not None:
            return self.window_id
        return self.subject if self.seq is None else f"{self.subject}/{self.seq}"


NO_REASON = Reason()
