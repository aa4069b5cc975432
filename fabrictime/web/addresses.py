"""Addresses of the page's own tabs."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode


def fabric_address(**choice: Any) -> str:
    """Return the address of the tab Fabric with a choice."""
    query = urlencode({key: value for key, value in choice.items() if value})
    return f"/fabric?{query}" if query else "/fabric"
