"""Finds a host's NICs and plans the files of its agent; prints the plan or writes the files."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import ValidationError

from fabrictime.commands.screen import table_of
from fabrictime.install.host_nics import HostNic, NicClass, host_nics
from fabrictime.install.plan import (
    Agent,
    PlannedFile,
    Step,
    owner_of,
    plan,
    settings_values,
    shared_key,
    write,
)
from fabrictime.runtime.config import Config
from producers.audit.host.base import Unreadable
from producers.audit.host.live import LiveHost
from producers.settings import NicSettings
from schemas.input_error import InputError
from schemas.kafka.settings import ADDRESS

if TYPE_CHECKING:
    from rich.console import Console

AGENT_USER: Final = "fabrictime"
"""The user that the packages make."""
CONFLICT_EXIT: Final = 1
MAX_KEY: Final = 256


class Request(NamedTuple):
    """The arguments of the command `init`."""

    log: str
    join: Path | None
    devices: tuple[str, ...]
    host: str | None
    rack: str | None
    netns: str | None
    folder: Path
    data: Path
    user: str | None


def main(request: Request, *, write: bool, force: bool, as_json: bool) -> int:
    """Run `init` and return the exit code. Raises ValueError for unusable input, OSError for file errors."""
    if not re.fullmatch(rf"{ADDRESS}(,{ADDRESS})*", request.log):
        raise InputError(f"--log {request.log}: expected host:port, or several separated by commas")
    try:
        nics = host_nics(LiveHost(netns=request.netns), request.devices)
        entries = nic_settings(nics, request)
    except Unreadable as error:
        raise InputError(f"interfaces of this host: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"{first['loc'][0]} {first['input']!r}: {first['msg']}") from None
    key = None if request.join is None else _shared_key(request.join)
    folder, data = request.folder.absolute(), request.data.absolute()
    agent = Agent(folder, data, request.log, tuple(entries), key, request.host)
    values = Config({**settings_values(agent)}, "init")
    _ = values.up, values.probes  # raises ConfigError
    planned = plan(agent, force=force)
    conflicts = [file for file in planned if file.step is Step.CONFLICT]
    written = write and not conflicts
    if written:
        _write(planned, request.user)
    if as_json:
        print(as_line(nics, planned, is_written=written))
    else:
        _show(nics, planned, is_written=written)
    for file in conflicts:
        print(f"fabrictime: {file.path}: {file.reason}; --force replaces it", file=sys.stderr)
    return CONFLICT_EXIT if conflicts else 0


def nic_settings(nics: Sequence[HostNic], request: Request) -> list[NicSettings]:
    """Return the entries of the fleet file for the fabric's NICs. Raises ValueError if no NIC is found."""
    host = request.host or socket.gethostname()
    entries = [
        NicSettings(
            host=host,
            device=nic.device,
            address=nic.address,
            netns=request.netns,
            rdma_device=nic.rdma_device or None,
            rail=nic.rail,
            rack=request.rack,
        )
        for nic in nics
        if nic.nic_class is NicClass.FABRIC
    ]
    if not entries:
        others = "; ".join(f"{nic.device}: {nic.reason}" for nic in nics) or "there is no interface"
        raise InputError(f"no NIC to probe from: {others}; --device names one")
    return entries


def _shared_key(source: Path) -> str:
    if str(source) != "-":
        return shared_key(source)
    return shared_key(Path("standard input"), sys.stdin.buffer.read(MAX_KEY))


def _write(planned: Sequence[PlannedFile], user: str | None) -> None:
    if user is None and os.geteuid() == 0 and _exists(AGENT_USER):
        user = AGENT_USER
    write(planned, owner_of(user))


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def as_line(nics: Sequence[HostNic], planned: Sequence[PlannedFile], *, is_written: bool) -> str:
    """Return NICs and files as one line of JSON, without the contents of key files."""
    return json.dumps(
        {
            "nics": [
                {
                    "device": nic.device,
                    "class": nic.nic_class,
                    "reason": nic.reason,
                    "address": nic.address or None,
                    "rail": nic.rail,
                    "rdma_device": nic.rdma_device or None,
                    "ptp_clock": nic.ptp_clock or None,
                }
                for nic in nics
            ],
            "files": [
                {
                    "path": str(file.path),
                    "step": file.step,
                    "reason": file.reason,
                    "mode": f"{file.mode:04o}",
                    "text": None if file.is_secret else file.text,
                }
                for file in planned
            ],
            "written": is_written,
        }
    )


def _show(nics: Sequence[HostNic], planned: Sequence[PlannedFile], *, is_written: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    titles = ("NIC", "class", "address", "rail", "RDMA device", "PTP clock", "reason")
    rows = []
    for nic in nics:
        rail = "-" if nic.rail is None else str(nic.rail)
        cells = (nic.address, rail, nic.rdma_device, nic.ptp_clock)
        rows.append((nic.device, nic.nic_class, *(cell or "-" for cell in cells), nic.reason))
    console.print(table_of(titles, rows, wrapped=titles))
    for file in planned:
        _show_file(console, file, is_written=is_written)
    if is_written:
        console.print("check the host with: fabrictime doctor --config", planned[0].path, markup=False)
    elif any(file.step is Step.CONFLICT for file in planned):
        console.print("nothing was written, because a file holds other values")
    else:
        console.print("nothing was written; --write does it")


def _show_file(console: Console, file: PlannedFile, *, is_written: bool) -> None:
    reason = f" ({file.reason})" if file.reason else ""
    verb = file.step if not is_written else _DONE[file.step]
    console.print(f"\n{file.path}: {verb}, mode {file.mode:04o}{reason}", style="bold", markup=False)
    if not is_written and file.text and not file.is_secret:
        for line in file.text.rstrip().splitlines():
            console.print(f"  {line}", markup=False)


_DONE: Final = {
    Step.CREATE: "created",
    Step.EXTEND: "extended",
    Step.UNCHANGED: "unchanged",
    Step.REPLACE: "replaced",
    Step.CONFLICT: "conflict",
}
