"""Addresses of the page's tabs. Their query parameters contain the user's choices."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode


def fabric_address(**choice: Any) -> str:
    """Return the address of the Fabric tab with these query parameters."""
    return _address("/fabric", choice)


def contention_address(window: str) -> str:
    """Return the address of the Contention tab with one window opened."""
    return _address("/contention", {"window": window})


def jobs_address(**choice: Any) -> str:
    """Return the address of the Jobs tab with these query parameters."""
    return _address("/jobs", choice)


def alert_address(alert_id: str) -> str:
    """Return the address of the Alerts tab with one alert opened."""
    return _address("/alerts", {"alert": alert_id})


def clocks_address(**choice: Any) -> str:
    """Return the address of the Clocks tab with these query parameters."""
    return _address("/clocks", choice)


def actions_address(**choice: Any) -> str:
    """Return the address of the Actions tab with these query parameters."""
    return _address("/actions", choice)


def audit_address(**choice: Any) -> str:
    """Return the address of the Audit tab with these query parameters."""
    return _address("/audit", choice)


def _address(path: str, choice: dict[str, Any]) -> str:
    query = urlencode({key: value for key, value in choice.items() if value})
    return f"{path}?{query}" if query else path
