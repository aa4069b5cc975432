"""Checks of an agent's files: settings, fleet file, probe key, data directory, sockets, running agent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fabrictime.install.outcome import Level, Outcome
from fabrictime.runtime import status
from fabrictime.runtime.config import Config, ConfigError
from fabrictime.runtime.fleet import KINDS, file_nics, host_name, sim_settings
from producers.probe.keys import read_key
from producers.settings import NicSettings
from schemas.secret_file import SecretFileError

MIN_FREE_BYTES: Final = 256 << 20
"""Free space below which log files of the agent may fill the disk."""


def settings_outcomes(config: Config) -> Iterator[Outcome]:
    """Yield one outcome if the settings are valid, else one per wrong key."""
    try:
        config.check()
    except ConfigError as error:
        for line in str(error).splitlines():
            fix = f"edit {config.source}; `fabrictime config example` lists every key"
            yield Outcome("files", "settings", Level.FAILED, line, fix)
        return
    yield Outcome("files", "settings", Level.OK, config.source)


def fleet_of(config: Config) -> tuple[list[NicSettings], Outcome]:
    """Return this host's NICs according to the fleet file, and the outcome of reading this file."""
    fleet = config.up.fleet
    if fleet in KINDS or sim_settings(fleet) is not None:
        text = f"fleet {fleet!r}: no fleet file names NICs of this host"
        return [], Outcome("files", "fleet", Level.SKIPPED, text)
    try:
        nics = file_nics(Path(fleet), host_name(config))
    except ConfigError as error:
        fix = f"fabrictime init --log {config.bootstrap} --write"
        return [], Outcome("files", "fleet", Level.FAILED, str(error), fix)
    names = ", ".join(nic.device for nic in nics)
    return nics, Outcome("files", "fleet", Level.OK, f"{fleet}: {len(nics)} NICs of {nics[0].host}: {names}")


def file_outcomes(config: Config) -> Iterator[Outcome]:
    """Yield the outcomes of checks of probe key, secrets, data directory, sockets and the running agent."""
    yield _key(config)
    for name, file in _secrets(config):
        yield _secret(name, file)
    yield from _data(config.up.data_directory)
    yield from _agent(config.up.data_directory)


def _key(config: Config) -> Outcome:
    path = config.probes.key_file
    if not path.exists() and path.parent == config.up.data_directory / "secrets":
        return Outcome("files", "probe key", Level.OK, f"{path}: `fabrictime up` makes it")
    try:
        read_key(path)
    except SecretFileError as error:
        return Outcome("files", "probe key", Level.FAILED, str(error), _key_fix(path))
    agent, key = _owner(config.up.data_directory), path.stat()
    if agent is not None and key.st_uid != agent and not key.st_mode & stat.S_IRGRP:
        text = f"{path}: belongs to user {key.st_uid}, the data directory to user {agent}"
        return Outcome("files", "probe key", Level.FAILED, text, f"chown {agent} {path}")
    return Outcome("files", "probe key", Level.OK, str(path))


def _owner(path: Path) -> int | None:
    return path.stat().st_uid if path.exists() else None


def _key_fix(path: Path) -> str:
    if path.exists():
        return f"chmod 600 {path}; chown it to the agent's user"
    return "bring the fleet's key from another host: fabrictime init --join KEYFILE --log HOST:PORT --write"


def _secrets(config: Config) -> Iterator[tuple[str, Path]]:
    candidates = (
        ("kafka.sasl_password_file", config.kafka.sasl_password_file),
        ("kafka.tls_key_file", config.kafka.tls_key_file),
        ("up.history_password_file", config.up.history_password_file),
    )
    for name, file in candidates:
        if file is not None:
            yield name, file


def _secret(name: str, file: Path) -> Outcome:
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError as error:
        return Outcome(
            "files", name, Level.FAILED, f"{file}: {error.strerror}", f"create {file}, or correct {name}"
        )
    if mode & 0o077:
        text = f"{file}: mode {mode:04o}, others could read it"
        return Outcome("files", name, Level.WARNING, text, f"chmod 600 {file}")
    return Outcome("files", name, Level.OK, str(file))


def _data(directory: Path) -> Iterator[Outcome]:
    if not directory.exists():
        yield Outcome("files", "data directory", Level.OK, f"{directory}: the agent makes it")
        return
    entry = directory.stat()
    mode = stat.S_IMODE(entry.st_mode)
    if mode & 0o077:
        text = f"{directory}: mode {mode:04o}, others may enter it"
        yield Outcome("files", "data directory", Level.FAILED, text, f"chmod 700 {directory}")
        return
    statistics = os.statvfs(directory)
    free = statistics.f_bavail * statistics.f_frsize
    if free < MIN_FREE_BYTES:
        text = f"{directory}: {free >> 20} MiB are free, expected {MIN_FREE_BYTES >> 20}"
        yield Outcome("files", "data directory", Level.FAILED, text, f"free space below {directory}")
        return
    yield Outcome("files", "data directory", Level.OK, f"{directory}, {free >> 20} MiB are free")


def _agent(directory: Path) -> Iterator[Outcome]:
    """Yield the outcomes of checks of a running agent: its services, and the permissions of its sockets."""
    try:
        state = status.read(directory)
    except status.NotReady as error:
        yield Outcome("agent", "running", Level.WARNING, str(error), "wait, then run it again")
        return
    except ValueError as error:
        yield Outcome("agent", "running", Level.SKIPPED, str(error))
        return
    faults = status.wrong(state)
    for line in faults:
        yield Outcome("agent", "services", Level.FAILED, line, f"see the log files in {directory / 'run'}")
    if not faults:
        text = f"pid {state['pid']}, {len(state['children'])} services are ready"
        yield Outcome("agent", "services", Level.OK, text)
    yield from _sockets(sorted((directory / "run").glob("*.sock")))


def _sockets(sockets: Sequence[Path]) -> Iterator[Outcome]:
    for path in sockets:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:  # a service that restarts makes it again
            continue
        name, fix = f"socket {path.name}", f"chmod 600 {path}"
        if mode & 0o007 and path.name not in ("flows.sock", "collectives.sock"):
            yield Outcome("agent", name, Level.FAILED, f"mode {mode:04o}, others could connect", fix)
        else:
            yield Outcome("agent", name, Level.OK, f"mode {mode:04o}")
