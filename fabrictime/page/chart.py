"""The Python side of `chart.js`: sends a frame only when the browser has drawn the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments

ECHART = ui.echart  # its import registers the ECharts module that chart.js imports


class LiveChart(Element, component="chart.js"):
    """A chart of one kind (heat, pair, clocks). A tab that draws slowly, or is hidden, skips frames."""

    def __init__(self, kind: str, on_cell: Callable[[int, int], None] | None = None) -> None:
        super().__init__()
        self._props["kind"] = kind
        self._source: Callable[[bool], dict[str, Any] | None] | None = None
        self._ready = self._waiting = self._dirty = self._anew = False
        self._seq = 0
        self.on("ready", self._on_ready)
        self.on("ack", self._on_ack)
        if on_cell is not None:

            def clicked(event: GenericEventArguments) -> None:
                on_cell(int(event.args["x"]), int(event.args["y"]))

            self.on("cell", clicked)

    @property
    def is_ignoring_events(self) -> bool:
        """Never: a hidden chart must still say that it is ready or has drawn."""
        return False

    def show(self, source: Callable[[bool], dict[str, Any] | None]) -> None:
        """Draw what `source(whole)` returns, once the browser can take it."""
        self._source = source
        self._dirty = True
        self._send()

    def resume(self) -> None:
        """Send everything again: the browser was away, and what it last drew is not known."""
        if self._ready:
            self._on_ready()

    def _send(self) -> None:
        if not self._ready or self._waiting or not self._dirty or self._source is None:
            return
        frame = self._source(self._anew)
        self._dirty = False
        if frame is None:
            return
        self._anew = False
        self._seq += 1
        self._waiting = True
        self.run_method("frame", self._seq, frame)

    def _on_ready(self) -> None:
        self._ready, self._waiting, self._anew = True, False, True
        self._dirty = self._source is not None
        self._send()

    def _on_ack(self, event: GenericEventArguments) -> None:
        if event.args == self._seq:
            self._waiting = False
            self._send()
