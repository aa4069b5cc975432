"""Python side of the canvas charts. It sends a frame only after the browser has drawn the previous frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nicegui import ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments

NOTHING: Final = "Nothing to draw yet."
ECHART = ui.echart  # its import registers the ECharts module that chart.js imports


class LiveChart(Element, component="chart.js", esm={"fabrictime-draw": "draw"}):
    """A chart of one kind from chart.js. A slow or hidden browser tab skips frames."""

    is_vector = True
    """Whether the browser can save the picture as SVG."""

    def __init__(
        self,
        kind: str,
        on_cell: Callable[[int, int], None] | None = None,
        on_pick: Callable[[str], None] | None = None,
        empty: str = "",
    ) -> None:
        """Make a chart. The text `empty` stands in its place before the first frame."""
        super().__init__()
        self._props["kind"], self._props["empty"] = kind, empty
        self._source: Callable[[bool], dict[str, Any] | None] | None = None
        self._ready = self._waiting = self._dirty = self._is_full = False
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
        """Return False: a hidden chart must still receive `ready` and `ack`."""
        return False

    def show(self, source: Callable[[bool], dict[str, Any] | None]) -> None:
        """Draw the frame that `source(is_full)` returns, once the browser is ready. With `is_full`, the frame
        must be whole, because the browser has no earlier frame.
        """
        self._source = source
        self._dirty = True
        self._send()

    def resume(self) -> None:
        """Send a whole frame after the browser has reconnected."""
        if self._ready:
            self._on_ready()

    def _send(self) -> None:
        if not self._ready or self._waiting or not self._dirty or self._source is None:
            return
        frame = self._source(self._is_full)
        self._dirty = False
        if frame is None:
            return
        self._is_full = False
        self._seq += 1
        self._waiting = True
        self.run_method("frame", self._seq, frame)

    def _on_ready(self) -> None:
        self._ready, self._waiting, self._is_full = True, False, True
        self._dirty = self._source is not None
        self._send()

    def _on_ack(self, event: GenericEventArguments) -> None:
        if event.args == self._seq:
            self._waiting = False
            self._send()


class FabricMap(LiveChart, component="fabric.js"):
    """The map of the fabric. A click calls `on_hit(kind, k, plan_number)`: `k` is the index of the clicked
    cable, NIC, node or rack in that plan. The kind is `none` if the click hit nothing.
    """

    is_vector = False

    def __init__(self, label: str, on_hit: Callable[[str, int, int], None]) -> None:
        super().__init__("fabric")
        self._props["label"] = label

        def hit(event: GenericEventArguments) -> None:
            on_hit(str(event.args["kind"]), int(event.args["k"]), int(event.args["plan"]))

        self.on("pick", hit)


class TrafficMatrix(LiveChart, component="matrix.js"):
    """A matrix of senders and receivers on canvas. A click calls `on_cell(row, column)`."""

    is_vector = False

    def __init__(self, label: str, on_cell: Callable[[int, int], None]) -> None:
        super().__init__("matrix")
        self._props["label"] = label

        def clicked(event: GenericEventArguments) -> None:
            on_cell(int(event.args["row"]), int(event.args["column"]))

        self.on("pick", clicked)
