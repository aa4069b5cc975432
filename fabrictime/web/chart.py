"""The Python side of `chart.js` and `fabric.js`: sends a frame only when the browser has drawn the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments

ECHART = ui.echart  # its import registers the ECharts module that chart.js imports


class LiveChart(Element, component="chart.js", esm={"fabrictime-draw": "draw"}):
    """A chart of one kind, as chart.js lists them. A tab that draws slowly, or is hidden, skips frames."""

    def __init__(
        self,
        kind: str,
        on_cell: Callable[[int, int], None] | None = None,
        on_pick: Callable[[str], None] | None = None,
    ) -> None:
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
        if on_pick is not None:
            self.on("pick", lambda event: on_pick(str(event.args["name"])))

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


class FabricMap(LiveChart, component="fabric.js"):
    """The drawn fabric: `on_hit(what, k, plan)` is told of a click on a cable, NIC or node, or on none."""

    def __init__(self, label: str, on_hit: Callable[[str, int, int], None]) -> None:
        super().__init__("fabric")
        self._props["label"] = label

        def hit(event: GenericEventArguments) -> None:
            on_hit(str(event.args["what"]), int(event.args["k"]), int(event.args["plan"]))

        self.on("pick", hit)
