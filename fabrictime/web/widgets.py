"""Elements that change without the page being rendered anew: words, chips, and sections that come and go.

NiceGUI renders a whole page for every text that changes on it, which takes a browser a tenth of a second on a
busy machine, several times a second. What an element here shows reaches its component by a method instead,
with all others that changed meanwhile in one message.

In: as for elements of NiceGUI: `set_text`, `set_visibility`, `classes`. Out: messages to words.js, chips.js
and section.js.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from nicegui.client import Client
from nicegui.element import Element

log = logging.getLogger(__name__)

T = TypeVar("T")

_changed: Final[WeakKeyDictionary[Client, dict[int, IncrementalElement]]] = WeakKeyDictionary()
"""What each client is to be told of when this turn of the loop ends, by element, in the order of change."""
PUT: Final = (
    "for (const [id, state] of {}) try {{ runMethod(id, 'put', [state]) }} catch (e) {{ console.error(e) }}"
)


class IncrementalElement(Element):
    """An element whose component has a method `put` for what it shows, and says `ready` once it stands."""

    _ready = False

    def __init__(self) -> None:
        super().__init__()
        self.on("ready", self._on_ready)

    @property
    def is_ignoring_events(self) -> bool:
        """Never: what is hidden must still say that it is ready."""
        return False

    def update(self) -> None:
        """Tell the browser what changed; as any other element does until this one stands there."""
        if not self._ready:
            super().update()
        elif not self.is_deleted:
            changed = _changed.setdefault(self.client, {})
            if not changed:
                asyncio.get_running_loop().call_soon(_tell, self.client)
            changed[self.id] = self

    def state(self) -> dict[str, Any]:
        """Return what `put` takes."""
        return {"classes": " ".join(self._classes)}

    def _on_ready(self) -> None:
        self._ready = True
        self.update()


class LiveText(IncrementalElement, component="words.js"):
    """A line of text, as `ui.label` is one."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._props["said"] = text

    @property
    def text(self) -> str:
        """What it says."""
        return str(self._props["said"])

    def set_text(self, text: str, title: str = "") -> None:
        """Say this; `title` stands beside the pointer, for what may not fit."""
        if (text, title) != (self._props["said"], self._props.get("title", "")):
            with self._props.suspend_updates():
                self._props.update(said=text, title=title)
            self.update()

    def state(self) -> dict[str, Any]:
        """Return what `put` takes."""
        return {**super().state(), "said": self.text, "title": self._props.get("title", "")}


class Markup(LiveText):
    """HTML that changes; whoever writes it has escaped what came from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._props["html"] = True


class LiveList(IncrementalElement, Generic[T]):
    """One that shows a list, which its component alone is told of."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[T] = []

    def put(self, shown: list[T]) -> None:
        """Show these, in this order."""
        if shown != self._shown:
            self._shown = shown
            if self._ready:  # else all are told once it is
                self.update()


class Chips(LiveList[tuple[str, str, str]], component="chips.js"):
    """A row of chips: (key, text, address); without an address it is a button, of which `on_pick` is told."""

    def __init__(self, on_pick: Callable[[str], None] | None = None) -> None:
        super().__init__()
        if on_pick is not None:
            self.on("pick", lambda event: on_pick(str(event.args)))

    def state(self) -> dict[str, Any]:
        """Return what `put` of the component takes."""
        return {"chips": self._shown}


class Section(IncrementalElement, component="section.js"):
    """A part of the page that comes and goes with what is in it."""


def _tell(client: Client) -> None:
    states = []
    for element in _changed.pop(client, {}).values():
        if not element.is_deleted:
            try:
                states.append(json.dumps([element.id, element.state()]))
            except Exception:  # what one cannot say must not keep the others from it
                log.exception("%s cannot be told what it shows", element)
    if states:
        client.run_javascript(PUT.format(f"[{', '.join(states)}]"))
