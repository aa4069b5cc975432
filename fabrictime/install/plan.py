"""Plans the files of a host's agent: settings, fleet file, probe key. Then writes them.

A plan compares each file with the present one. A file that holds other values is a conflict: only `force`
writes it. The probe key is shared by the fleet, so an existing key is never replaced by a new random one.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from fabrictime.runtime.fleet import file_nics
from producers.probe.keys import read_key
from producers.settings import NicSettings
from schemas.secret_file import SecretFileError
from schemas.settings_file import BadFile, read_tables

SETTINGS: Final = "fabrictime.toml"
FLEET: Final = "fleet.toml"
KEY: Final = "probe.key"
KEY_BYTES: Final = 32
SECRET_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644


class Step(StrEnum):
    """The step that the plan takes for a file, such as create or replace."""

    CREATE = "create"
    EXTEND = "extend"
    UNCHANGED = "unchanged"
    REPLACE = "replace"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file of the plan. `text` is its complete new content; `reason` explains the step."""

    path: Path
    step: Step
    text: str
    mode: int
    reason: str = ""

    @property
    def is_secret(self) -> bool:
        """Whether the file holds a secret, so that its content must not be shown."""
        return self.mode == SECRET_MODE


@dataclass(frozen=True, slots=True)
class Agent:
    """The inputs of a plan. `shared_key` is the fleet's key in hexadecimal; None for a new key."""

    folder: Path
    data: Path
    log: str
    nics: tuple[NicSettings, ...]
    shared_key: str | None = None
    host_name: str | None = None


def plan(agent: Agent, *, force: bool = False) -> list[PlannedFile]:
    """Return the planned files of the agent. Raises ValueError if an existing file cannot be read."""
    planned = [_settings(agent), _fleet(agent), _key(agent)]
    if not force:
        return planned
    return [
        PlannedFile(file.path, Step.REPLACE, file.text, file.mode, file.reason)
        if file.step is Step.CONFLICT
        else file
        for file in planned
    ]


def settings_values(agent: Agent) -> dict[str, dict[str, str]]:
    """Return the values in the agent's settings file, by table and key."""
    up = {
        "fleet": str(agent.folder / FLEET),
        "log_url": agent.log,
        "data_directory": str(agent.data),
    }
    if agent.host_name is not None:
        up["host_name"] = agent.host_name
    return {"up": up, "probes": {"key_file": str(agent.folder / KEY)}}


def _settings(agent: Agent) -> PlannedFile:
    path, values = agent.folder / SETTINGS, settings_values(agent)
    lines = ["# Written by `fabrictime init`. `fabrictime config example` prints every setting.", ""]
    for table, keys in values.items():
        lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in keys.items()), ""]
    text = "\n".join(lines)
    present = _tables(path)
    if present is None:
        return PlannedFile(path, Step.CREATE, text, PUBLIC_MODE)
    if not present:
        return PlannedFile(path, Step.CREATE, text, PUBLIC_MODE, "the present file sets nothing")
    others = [
        f"{table}.{key} is {_toml(present.get(table, {}).get(key))}, expected {_toml(value)}"
        for table, keys in values.items()
        for key, value in keys.items()
        if present.get(table, {}).get(key) != value
    ]
    step = Step.CONFLICT if others else Step.UNCHANGED
    return PlannedFile(path, step, text, PUBLIC_MODE, others[0] if others else "")


def _tables(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        return read_tables(path)
    except BadFile as error:
        raise ValueError(f"{path}: {error}") from None


def _fleet(agent: Agent) -> PlannedFile:
    """Plan the fleet file. Entries of other hosts stay; entries of this host are added if it has none."""
    path, own = agent.folder / FLEET, list(agent.nics)
    if not path.exists():
        return PlannedFile(path, Step.CREATE, fleet_text(own), PUBLIC_MODE)
    host = own[0].host
    present = file_nics(path)
    others = [nic for nic in present if nic.host != host]
    listed = [nic for nic in present if nic.host == host]
    if listed == own:
        return PlannedFile(path, Step.UNCHANGED, "", PUBLIC_MODE)
    if not listed:
        text = f"{path.read_text(encoding='utf-8').rstrip()}\n\n{fleet_text(own)}"
        return PlannedFile(path, Step.EXTEND, text, PUBLIC_MODE, f"it lists {len(present)} NICs of others")
    reason = f"it has other entries of {host}: {', '.join(nic.device for nic in listed)}"
    return PlannedFile(path, Step.CONFLICT, fleet_text(others + own), PUBLIC_MODE, reason)


def fleet_text(nics: Sequence[NicSettings]) -> str:
    """Return the text of a fleet file with one `[[nics]]` table per NIC."""
    rows = []
    for nic in nics:
        values = nic.model_dump(mode="json", exclude_defaults=True)
        rows.append("\n".join(["[[nics]]", *(f"{key} = {_toml(value)}" for key, value in values.items())]))
    return "\n\n".join(rows) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    text = json.dumps(value)
    tomllib.loads(f"x = {text}")  # JSON's texts, numbers and booleans are TOML's
    return text


def _key(agent: Agent) -> PlannedFile:
    path, shared = agent.folder / KEY, agent.shared_key
    if not path.exists():
        reason = "a new key, for a new fleet" if shared is None else "the fleet's key"
        return PlannedFile(path, Step.CREATE, shared or secrets.token_hex(KEY_BYTES), SECRET_MODE, reason)
    if shared is None:
        return PlannedFile(path, Step.UNCHANGED, "", SECRET_MODE, "an existing key is kept")
    try:
        is_same = read_key(path).hex() == shared
    except SecretFileError as error:
        return PlannedFile(path, Step.CONFLICT, shared, SECRET_MODE, str(error))
    if is_same:
        return PlannedFile(path, Step.UNCHANGED, "", SECRET_MODE)
    return PlannedFile(path, Step.CONFLICT, shared, SECRET_MODE, "it holds another fleet's key")


def shared_key(source: Path, text: bytes | None = None) -> str:
    """Return the fleet's key in hexadecimal from a file, or from `text`. Raises ValueError."""
    if text is None:
        return read_key(source).hex()
    with tempfile.TemporaryDirectory(prefix="fabrictime-key-") as folder:
        file = Path(folder) / KEY
        file.touch(mode=SECRET_MODE)
        file.write_bytes(text)
        try:
            return read_key(file).hex()
        except SecretFileError as error:
            raise ValueError(str(error).replace(str(file), str(source))) from None


def owner_of(user: str | None) -> tuple[int, int] | None:
    """Return user and group id of the agent's user; None if files stay with the caller.

    Raises ValueError if the user does not exist or the caller may not change the owner of files.
    """
    if user is None:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise ValueError(f"user {user}: no such user on this host") from None
    if os.geteuid() not in (0, entry.pw_uid):
        raise ValueError(f"user {user}: only root can give the probe key to another user")
    return entry.pw_uid, entry.pw_gid


def write(planned: Sequence[PlannedFile], owner: tuple[int, int] | None = None) -> None:
    """Write the planned files, each atomically. Raises OSError.

    `owner` is user and group id of the agent; the secret files get this owner.
    """
    for file in planned:
        if file.step in (Step.UNCHANGED, Step.CONFLICT):
            continue
        file.path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        fd, name = tempfile.mkstemp(dir=file.path.parent, prefix=f".{file.path.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as stream:
                stream.write(file.text)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(name, file.mode)
            if owner is not None and file.is_secret:
                os.chown(name, *owner)
            os.replace(name, file.path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
