"""Exceptions of the client, all derived from `ClockError`."""

from __future__ import annotations


class ClockError(Exception):
    """Fabric time is not available. The message is one line."""


class PageMissing(ClockError):
    """No page exists at the path, or it may not be read."""


class PageUnusable(ClockError):
    """The file is not a page, is corrupt or truncated, or belongs to another boot or time namespace."""


class WrongVersion(PageUnusable):
    """The page has a layout version that this package does not support."""


class Unsynced(ClockError):
    """The page exists, but fabric time is unknown at present or at the given timestamp."""


class UnknownClock(ClockError, KeyError):
    """This host has no clock or NIC of that name."""

    def __str__(self) -> str:
        """Return the message unchanged; KeyError would quote it."""
        return str(self.args[0])
