"""A console for a run with services: if its output pipe closes, the services are stopped in order."""

from __future__ import annotations

import asyncio
import os
from typing import TextIO

from rich.console import Console


class RunConsole(Console):
    """Prints to a stream, and requests a stop when the reader of the stream has closed it."""

    def __init__(self, stop: asyncio.Event, file: TextIO) -> None:
        super().__init__(file=file)
        self._stop = stop
        self.is_closed = False
        """Whether the reader of the output is gone."""

    def on_broken_pipe(self) -> None:
        """Request the stop and drop further output; rich's own method would end the program in a callback."""
        self.quiet = self.is_closed = True
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, self.file.fileno())  # Python writes its buffer at the exit
        os.close(devnull)
        self._stop.set()
