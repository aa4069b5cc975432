"""What can be wrong, each with a class of its own below `ClockError`."""

from __future__ import annotations


class ClockError(Exception):
    """There is no fabric time to be had here. One line says why."""


class PageMissing(ClockError):
    """There is no page at the path, or it is not to be read by us."""


class PageUnusable(ClockError):
    """The file is no page, is spoilt or cut short, or belongs to another boot or time namespace."""


class WrongVersion(PageUnusable):
    """The page is of another version of fabrictime than this package."""


class Unsynced(ClockError):
    """The page is there, but fabric time is not known now, or not at that stamp."""


class UnknownClock(ClockError, KeyError):
    """This host has no clock and no NIC of that name."""

    def __str__(self) -> str:
        """Return the line as it is; KeyError would quote it."""
        return str(self.args[0])
