"""Incremental widgets: elements that change in the browser without a new rendering of the page.

NiceGUI renders the whole page after every change of a text, which takes a browser a tenth of a second on a
busy machine. These elements instead call a method of their component, with one message per client and loop
iteration. They have the methods of NiceGUI's elements: `set_text`, `set_visibility`, `classes`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from nicegui.client import Client
from nicegui.element import Element
from nicegui.events import GenericEventArguments

log = logging.getLogger(__name__)

T = TypeVar("T")
Row: TypeAlias = dict[str, Any]
Part: TypeAlias = tuple[str, str, str] | tuple[str, str, str, list[float] | str]
Cell: TypeAlias = str | Sequence[Part]
"""A cell's text, or its lines from top to bottom as `Part`: (classes, text, title), with values if it has a
small line chart, with an address if it is a link.
"""

_pending: Final[WeakKeyDictionary[Client, dict[int, IncrementalElement]]] = WeakKeyDictionary()
"""Changed elements by client and id, in the order of change, until the end of the loop iteration."""
PUT: Final = (
    "for (const [id, state] of {}) try {{ runMethod(id, 'put', [state]) }} catch (e) {{ console.error(e) }}"
)


class IncrementalElement(Element):
    """An element with a browser component that takes its state in `put` and emits `ready` once mounted."""

    _ready = False

    def __init__(self) -> None:
        super().__init__()
        self.on("ready", self._on_ready)

    @property
    def is_ignoring_events(self) -> bool:
        """Return False: a hidden element must still receive `ready`."""
        return False

    def update(self) -> None:
        """Send the state with the next message. Before the component is mounted, update as NiceGUI does."""
        if not self._ready:
            super().update()
        elif not self.is_deleted:
            pending = _pending.setdefault(self.client, {})
            if not pending:
                asyncio.get_running_loop().call_soon(_send, self.client)
            pending[self.id] = self

    def state(self) -> dict[str, Any]:
        """Return the state that the browser's component receives in its method `put`."""
        return {"classes": " ".join(self._classes)}

    def _on_ready(self) -> None:
        self._ready = True
        with self._props.suspend_updates():
            self._props.pop("first", None)
        self.update()


def _send(client: Client) -> None:
    states = []
    for element in _pending.pop(client, {}).values():
        if not element.is_deleted:
            try:
                states.append(json.dumps([element.id, element.state()]))
            except Exception:  # an element with a broken state must not hold up the others
                log.exception("cannot send the state of %s", element)
    if states:
        client.run_javascript(PUT.format(f"[{', '.join(states)}]"))


class LiveText(IncrementalElement, component="live_text.js"):
    """A line of text, the counterpart of `ui.label`."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._props["content"] = text

    @property
    def text(self) -> str:
        """The current text."""
        return str(self._props["content"])

    def set_text(self, text: str, title: str = "") -> None:
        """Set the text, and the tooltip for text that may not fit."""
        if (text, title) != (self._props["content"], self._props.get("title", "")):
            with self._props.suspend_updates():
                self._props.update(content=text, title=title)
            self.update()

    def state(self) -> dict[str, Any]:
        """Return the state that the browser's component receives in its method `put`."""
        return {**super().state(), "content": self.text, "title": self._props.get("title", "")}


class LiveMarkup(LiveText):
    """HTML that can change. The caller must escape text from outside."""

    def __init__(self) -> None:
        super().__init__()
        self._props["html"] = True


class Section(IncrementalElement, component="section.js"):
    """A part of the page that can be shown and hidden."""


class LiveList(IncrementalElement, Generic[T]):
    """An element that shows a list of items. Only its component in the browser receives the items."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[T] = []

    def put(self, items: list[T]) -> None:
        """Show these items in this order."""
        if items != self._shown:
            self._shown = items
            if self._ready:
                self.update()
            else:  # shown as soon as the component is mounted
                with self._props.suspend_updates():
                    self._props["first"] = self.state()


class Chips(LiveList[tuple[str, str, str]], component="chips.js"):
    """A row of chips (key, text, address). A chip without an address is a button that calls `on_pick`."""

    def __init__(self, on_pick: Callable[[str], None] | None = None) -> None:
        super().__init__()
        if on_pick is not None:
            self.on("pick", lambda event: on_pick(str(event.args)))

    def state(self) -> dict[str, Any]:
        """Return the state that the browser's component receives in its method `put`."""
        return {"chips": self._shown}


class LiveTable(LiveList[Row], component="live_table.js"):
    """A table with (name, label, alignment) columns, hidden while it is empty. Each row has a unique `id`.

    `cells` holds a function for each column that shows more than `row[name]`. `on_pick` receives a clicked
    row.
    """

    def __init__(
        self,
        columns: Sequence[tuple[str, str, str]],
        cells: Mapping[str, Callable[[Row], Cell]] | None = None,
        on_pick: Callable[[Row], None] | None = None,
    ) -> None:
        super().__init__()
        self._columns = [name for name, _, _ in columns]
        self.labels = [label for _, label, _ in columns]
        self._cells = dict(cells or {})
        self._props["columns"] = [(label, align) for _, label, align in columns]
        self._props["head"] = any(label for _, label, _ in columns)
        self._props["picks"] = on_pick is not None
        if on_pick is not None:

            def picked(event: GenericEventArguments) -> None:
                row = next((row for row in self._shown if str(row["id"]) == event.args), None)
                if row is not None:  # the row may have been removed while the click was under way
                    on_pick(row)

            self.on("pick", picked)

    def state(self) -> dict[str, Any]:
        """Return the state that the browser's component receives in its method `put`."""
        rows = [[str(row["id"]), [self._cell(row, name) for name in self._columns]] for row in self._shown]
        return {"rows": rows}

    def texts(self) -> list[list[str]]:
        """Return the cells of each row as text, with the lines of a cell joined."""
        return [[_text_of(self._cell(row, name)) for name in self._columns] for row in self._shown]

    def _cell(self, row: Row, name: str) -> Cell:
        if name in self._cells:
            return self._cells[name](row)
        return "" if row[name] is None else str(row[name])


def _text_of(cell: Cell) -> str:
    return cell if isinstance(cell, str) else "; ".join(part[1] for part in cell if part[1])
