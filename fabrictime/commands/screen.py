"""Prints tables and live views to the terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text


def terminal(width: int) -> Console:
    """Return a console for standard output, with `width` columns if the output is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=width, highlight=False)


def table_of(
    titles: Iterable[str],
    rows: Iterable[Iterable[str | Text]],
    *,
    wrapped: Collection[str] = (),
    right: Collection[str] = (),
) -> Table:
    """Return a table without a frame. Columns in `wrapped` may wrap; columns in `right` are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=title not in wrapped, justify="right" if title in right else "left")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def keep_live(console: Console, drawn: Callable[[], RenderableType], wait: Callable[[], object]) -> NoReturn:
    """Show a view full-screen until an interrupt; `wait` blocks until the next redraw."""
    from rich.live import Live

    with Live(drawn(), console=console, auto_refresh=False, screen=True) as live:
        while True:
            wait()
            live.update(drawn(), refresh=True)
