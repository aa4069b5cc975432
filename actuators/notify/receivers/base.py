"""The interface of a receiver, and the sending of JSON over HTTP.

URLs may contain secrets. No error and no log line of this package contains a URL.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from actuators.notify.plan import Notification
from actuators.notify.settings import ReceiverSettings
from actuators.notify.texts import Context

MAX_ANSWER: Final = 1 << 20
MAX_ERROR: Final = 200
TEMPORARY: Final = frozenset({401, 403, 404, 405, 408, 425, 429})
"""Answers in the 400s that a later attempt, or mended settings, may change."""


class DeliveryError(Exception):
    """Raised if a receiver did not accept a notification. `is_final`: a retry would be refused too."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class Receiver(Protocol):
    """The interface of a receiver: sends notifications to one service."""

    def send(self, notification: Notification, context: Context, now_ns: int) -> None:
        """Send a notification; return once the receiver has accepted it. Raises DeliveryError."""

    def close(self) -> None:
        """Close the connections to the service."""


def address_of(settings: ReceiverSettings) -> str:
    """Return the receiver's address from the settings or its file. A ValueError text omits the address."""
    if settings.url_file is None:
        if not settings.url or settings.type == "apprise":
            raise ValueError(
                "expected url_file" if settings.type == "apprise" else "expected url or url_file"
            )
        if "@" in settings.url.partition("//")[2].partition("/")[0]:
            raise ValueError("url: contains a password, expected url_file")
        return settings.url
    try:
        text = settings.url_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "expected UTF-8"
        raise ValueError(f"url_file {settings.url_file}: {reason}") from None
    if len(text.split()) != 1:
        raise ValueError(f"url_file {settings.url_file}: expected one address, each in its own receiver")
    return text


class JsonClient:
    """Sends JSON to one HTTP server, over a connection that stays open."""

    def __init__(self, settings: ReceiverSettings) -> None:
        """Check the address. Raises ValueError, with a text that does not contain the address."""
        try:
            parts = urlsplit(address_of(settings))
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ValueError(str(error) if "url" in str(error) else "url: is no address") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise ValueError("url: expected http:// or https:// with a host")
        self._is_secure = parts.scheme == "https"
        self.path = parts.path.rstrip("/")
        self.query = f"?{parts.query}" if parts.query else ""
        self._settings = settings
        self._credentials = None
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._credentials = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(self, method: str, path: str, content: Any = None) -> Any:
        """Send a request; return the answer's JSON, or None for any other body. Raises DeliveryError."""
        try:
            status, data = self._exchange(method, path, content)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise DeliveryError(_reason(error)) from None
        if not 200 <= status < 300:
            is_final = 400 <= status < 500 and status not in TEMPORARY
            raise DeliveryError(f"answered {status}", is_final=is_final)
        try:
            return json.loads(data) if data else None
        except ValueError:
            return None

    def _exchange(self, method: str, path: str, content: Any) -> tuple[int, bytes]:
        body = None if content is None else json.dumps(content, allow_nan=False).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "fabrictime"}
        if self._settings.token_file is not None:
            headers["Authorization"] = f"Bearer {read_token(self._settings.token_file)}"
        elif self._credentials is not None:
            headers["Authorization"] = self._credentials
        is_open = self._connection is not None
        connection = self._connect()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
        except (ConnectionError, http.client.RemoteDisconnected):
            if not is_open:
                raise
            self.close()  # the server closed the idle connection: nothing was sent on it
            connection = self._connect()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
        data = answer.read(MAX_ANSWER)
        if answer.will_close or answer.read(1):
            self.close()
        return answer.status, data

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            timeout_s = self._settings.timeout_s
            if self._is_secure:
                tls = ssl.create_default_context(cafile=self._settings.ca_file)
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=timeout_s, context=tls
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        return self._connection


def read_token(path: Path) -> str:
    """Return the bearer token in a file. Raises OSError, ValueError."""
    text = path.read_text(encoding="utf-8").strip()
    if not text or not text.isprintable():
        raise ValueError(f"{path}: expected a token on one line")
    return text


def _reason(error: Exception) -> str:
    """Return the reason why a request failed, without the server's address."""
    if isinstance(error, socket.gaierror):
        return "its host name cannot be resolved"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'refused'}"[:MAX_ERROR]
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return type(error).__name__
