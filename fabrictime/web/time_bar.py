"""The time control in the header of all tabs: live, or a moment of the past."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from nicegui.events import GenericEventArguments

from fabrictime.web.time_marks import NS_PER_MS, Mark
from fabrictime.web.widgets import IncrementalElement

log = logging.getLogger(__name__)

RANGES_S: Final = (900, 3600, 21_600, 86_400, 604_800)
MAX_AGE_NS: Final = 30 * 86_400_000_000_000
"""Age of the oldest moment that can be shown, ns."""


@dataclass(frozen=True, slots=True)
class TimeChoice:
    """The user's choice of time. `at_ns`: the moment; `end_ns`: the slider's end. None means now."""

    at_ns: int | None = None
    range_s: int = 3600
    end_ns: int | None = None

    @staticmethod
    def parse(query: Mapping[str, str], now_ns: int) -> TimeChoice:
        """Return the choice of time from an address. Invalid and future times become the defaults."""
        number = query.get("range", "")
        range_s = int(number) if number.isdecimal() and int(number) in RANGES_S else 3600
        at_ns = parse_time(query.get("at", ""))
        if at_ns is None or not now_ns - MAX_AGE_NS < at_ns < now_ns:
            return TimeChoice(None, range_s)
        half_ns = range_s * 500_000_000
        return TimeChoice(at_ns, range_s, at_ns + half_ns if at_ns < now_ns - 2 * half_ns else None)

    def parameters(self) -> dict[str, str]:
        """Return the query parameters with this choice of time; defaults are left out."""
        moment = {} if self.at_ns is None else {"at": time_of(self.at_ns)}
        return moment | ({} if self.range_s == 3600 else {"range": str(self.range_s)})

    def span_ns(self, now_ns: int) -> tuple[int, int]:
        """Return begin and end of the slider, ns. If the slider ends now, its end is a whole second."""
        end_ns = now_ns // 1_000_000_000 * 1_000_000_000 if self.end_ns is None else self.end_ns
        return end_ns - self.range_s * 1_000_000_000, end_ns


def parse_time(text: str) -> int | None:
    """Return an ISO 8601 time as ns since the Unix epoch; None if the text is no such time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000) * NS_PER_MS


def time_of(ns: int) -> str:
    """Return a time in ns since the Unix epoch as ISO 8601 text, UTC with milliseconds."""
    return (
        f"{datetime.fromtimestamp(ns / 1e9, tz=UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
    )


class TimeBar(IncrementalElement, component="time_bar.js", esm={"fabrictime-draw": "draw"}):
    """The slider and buttons that choose the time. Calls `seek(choice, push)` after a new choice."""

    def __init__(
        self, choice: TimeChoice, note: str, seek: Callable[[TimeChoice, bool], Awaitable[None]]
    ) -> None:
        super().__init__()
        self.choice, self._note, self._seek = choice, note, seek
        self._marks: list[Mark] = []
        self._is_loading = choice.at_ns is not None
        self._lock = asyncio.Lock()
        self._props["first"] = first = self.state()
        self._props["pressed"] = "true" if choice.at_ns is None else "false"
        self._props["moment"] = "now" if choice.at_ns is None else loading_text(choice.at_ns, first["now"])
        self.classes("" if choice.at_ns is None else "ft-past")
        self.on("seek", self._on_seek)

    def end_loading(self, at_ns: int | None) -> None:
        """Show that the page shows this moment, unless the reader chose another one meanwhile."""
        if at_ns == self.choice.at_ns:
            self._is_loading = False
            self.update()

    def put_marks(self, marks: list[Mark]) -> None:
        """Show these marks of alerts and decisions on the slider."""
        if marks != self._marks:
            self._marks = marks
            self.update()

    async def _on_seek(self, event: GenericEventArguments) -> None:
        """Show the chosen moment. If the user makes several choices meanwhile, only the last one is shown."""
        choice = _choice_of(event.args, time.time_ns())
        is_new = choice.at_ns != self.choice.at_ns
        self._is_loading = choice.at_ns is not None and (self._is_loading or is_new)
        self.choice = choice
        async with self._lock:
            if choice is self.choice:
                await self._seek(choice, bool(event.args.get("push")))
        self.update()

    def state(self) -> dict[str, Any]:
        """Return the state that the browser's component receives in its method `put`."""
        choice = self.choice
        return {
            "now": time.time_ns() // NS_PER_MS,
            "at": None if choice.at_ns is None else choice.at_ns // NS_PER_MS,
            "end": None if choice.end_ns is None else choice.end_ns // NS_PER_MS,
            "range": choice.range_s,
            "marks": self._marks,
            "note": self._note,
            "loading": self._is_loading,
        }


def loading_text(at_ns: int, now_ms: int) -> str:
    """Return the words of a past moment that is not yet shown, as the component writes them."""
    moment, today = time_of(at_ns), time_of(now_ms * NS_PER_MS)[:10]
    date = "" if moment.startswith(today) else f"{moment[:10]} "
    return f"{date}{moment[11:19]} UTC, loading …"


def _choice_of(message: Mapping[str, Any], now_ns: int) -> TimeChoice:
    """Return the choice of time that the browser sent. Values that no control sends become the defaults."""
    at_ns, end_ns = (
        round(message[name]) * NS_PER_MS if isinstance(message.get(name), int | float) else None
        for name in ("at", "end")
    )
    if at_ns is not None:
        at_ns = max(now_ns - MAX_AGE_NS, min(at_ns, now_ns))
    range_s = message.get("range")
    return TimeChoice(at_ns, range_s if range_s in RANGES_S else 3600, end_ns)
