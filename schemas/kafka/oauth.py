"""Requests OAuth 2.0 tokens for aiokafka, by the grant client_credentials (RFC 6749, section 4.4).

librdkafka requests its tokens itself, so its clients do not need this module.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.request
from typing import Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

from aiokafka.abc import AbstractTokenProvider

from schemas.input_error import InputError

TIMEOUT_S: Final = 5.0
RENEW_SHARE: Final = 0.8
"""Fraction of a token's lifetime after which the next connection requests a new token."""


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is untyped here
    """Provides a token from the server at `url`, and requests a new one before it expires."""

    def __init__(self, url: str, client_id: str, client_secret: str, scope: str | None = None) -> None:
        self._url = url
        self._form = {"grant_type": "client_credentials"} | ({} if scope is None else {"scope": scope})
        user = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        self._authorization = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._token, self._renew_s = "", 0.0

    async def token(self) -> str:
        """Return a valid token. Raises ValueError if the server returns no token."""
        if time.monotonic() >= self._renew_s:
            await asyncio.to_thread(self._request)
        return self._token

    def _request(self) -> None:
        headers = {"Authorization": self._authorization, "Accept": "application/json"}
        request = urllib.request.Request(self._url, urlencode(self._form).encode(), headers)  # noqa: S310
        asked_s = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
                answer = json.load(response)
            token, lifetime_s = str(answer["access_token"]), float(answer.get("expires_in", 0))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, HTTPError):
                error.close()
            # The body is not shown: it may hold the token.
            raise InputError(f"oauth_token_url {self._url}: no token: {type(error).__name__}") from error
        self._token, self._renew_s = token, asked_s + RENEW_SHARE * lifetime_s
