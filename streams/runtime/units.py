"""Unit constants for times in integer nanoseconds."""

from __future__ import annotations

from typing import Final

__all__ = ["NS_PER_MS", "NS_PER_S", "NS_PER_US"]

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
