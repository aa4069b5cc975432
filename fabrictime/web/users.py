"""Users of the page: their roles and their authentication.

`users_file` has a line `NAME ROLE TOKEN` for each user. A browser exchanges the token for a cookie, which is
a MAC of name and expiry under the token: removing or changing the line ends all logins of the user at once. A
reverse proxy that authenticates people itself names them in a header.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fabrictime.web.settings import LoginSettings
from schemas.secret_file import SecretFileError, read_secret, stamp

NAME: Final = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
MIN_TOKEN: Final = 20
"""Shortest token, characters; `fabrictime token` makes tokens of 256 random bits."""
COOKIE_S: Final = 12 * 3600
_LINE: Final = "lines 'NAME ROLE TOKEN'"

_log = logging.getLogger(__name__)


class Role(enum.IntEnum):
    """Rights of a user; each role includes the roles before it."""

    READ = 1
    CONFIGURE = 2
    ACT = 3


ROLES: Final = {"look": Role.READ, "configure": Role.CONFIGURE, "act": Role.ACT}
"""Roles by their names in files and settings."""


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class _Entry:
    user: User
    token: bytes


def parse_users(text: str) -> dict[bytes, _Entry]:
    """Return the users of a file by the hash of their tokens. Raises ValueError; its message has no token."""
    entries: dict[bytes, _Entry] = {}
    names: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) != 3 or not NAME.fullmatch(parts[0]):
            raise ValueError(f"line {number}: expected NAME ROLE TOKEN, a name of letters and digits")
        name, role, token = parts
        if len(token) < MIN_TOKEN:
            raise ValueError(f"line {number}: token of {len(token)} characters, expected {MIN_TOKEN} or more")
        if role not in ROLES:
            raise ValueError(f"line {number}: role {role!r}: expected {', '.join(ROLES)}")
        if name in names or _digest(token.encode()) in entries:
            raise ValueError(f"line {number}: {name} or its token occurs twice")
        names.add(name)
        entries[_digest(token.encode())] = _Entry(User(name, ROLES[role]), token.encode())
    return entries


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class Users:
    """The users of the page. The file is read again after each change of the file."""

    def __init__(self, settings: LoginSettings) -> None:
        """Read the users. Raises ValueError with one line if the file cannot be used."""
        self._settings = settings
        self._proxies = [ipaddress.ip_network(proxy) for proxy in settings.proxies]
        self._stamp: tuple[int, int, int] | None = None
        self._by_token: dict[bytes, _Entry] = {}
        if settings.users_file is not None:
            self._stamp = stamp(settings.users_file)
            self._by_token = self._load(settings.users_file)

    @staticmethod
    def _load(path: Path) -> dict[bytes, _Entry]:
        text = read_secret(path, "web.login.users_file", _LINE).decode(errors="replace")
        try:
            return parse_users(text)
        except ValueError as error:
            raise ValueError(f"web.login.users_file {path}: {error}") from None

    def _current(self) -> Mapping[bytes, _Entry]:
        """Return the users in the file now; none while the file cannot be read."""
        path = self._settings.users_file
        if path is not None and (present := stamp(path)) != self._stamp:
            self._stamp = present
            try:
                self._by_token = self._load(path)
            except (SecretFileError, ValueError) as error:
                self._by_token = {}
                _log.warning("%s; no token is accepted", error)
        return self._by_token

    def by_token(self, token: bytes) -> User | None:
        """Return the user with this token; None if no user has it."""
        entry = self._current().get(_digest(token))
        return None if entry is None else entry.user

    def cookie(self, token: bytes, now_s: float) -> str | None:
        """Return the value of a cookie for the user with this token; None if no user has it."""
        entry = self._current().get(_digest(token))
        if entry is None:
            return None
        head = f"{entry.user.name}:{int(now_s) + COOKIE_S}"
        return f"{head}:{_mac(entry.token, head)}"

    def by_cookie(self, value: str, now_s: float) -> User | None:
        """Return the user of a cookie that this page issued and that has not expired; None otherwise."""
        head, _, mac = value.rpartition(":")
        name, _, until = head.rpartition(":")
        if not until.isascii() or not until.isdecimal() or len(until) > 12 or int(until) <= now_s:
            return None
        for entry in self._current().values():
            if entry.user.name == name and _is_mac(entry.token, head, mac):
                return entry.user
        return None

    def by_proxy(self, address: str, names: list[str]) -> User | None:
        """Return the user that a trusted proxy at `address` names in its header; None otherwise."""
        if len(names) != 1 or not NAME.fullmatch(names[0]) or not self._is_proxy(address):
            return None
        roles = self._settings.proxy_roles
        return User(names[0], ROLES[roles.get(names[0], roles.get("*", "look"))])

    def _is_proxy(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self._proxies)


def _mac(token: bytes, head: str) -> str:
    return hmac.new(token, b"fabrictime cookie " + head.encode(errors="replace"), "sha256").hexdigest()


def _is_mac(token: bytes, head: str, mac: str) -> bool:
    return hmac.compare_digest(_mac(token, head).encode(), mac.encode(errors="replace"))


def new_token() -> str:
    """Return a new random token for a user."""
    return secrets.token_urlsafe(32)
