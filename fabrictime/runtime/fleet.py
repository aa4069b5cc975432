"""Lists the NICs that `up` probes: those of the testbed, of loopback, or of this host in a fleet file.

The inputs are the settings and, for `fabric`, the running testbed. A fleet file is TOML (or JSON) with one
`[[nics]]` table per NIC: `host`, `device`, `address`, and if known `shard`, `rail`, `rack`, `rdma_device`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from actuators.settings import HostSettings, TestClockSettings
from fabrictime.runtime.config import Config, ConfigError, plain, short
from producers.settings import ClockSettings, NicSettings
from producers.sim.settings import SimSettings, parse_fleet
from schemas.ids import device_of, host_of, nic_id
from schemas.settings_file import BadFile, read_tables

if TYPE_CHECKING:
    from fabrictime.testbed.fabric.fabric import Fabric, FabricNic

_ROWS: Final = TypeAdapter(list[NicSettings])
KINDS: Final = ("fabric", "loopback", "none")
SIM: Final = "sim"
"""Value of `up.fleet` for the simulated fleet: alone, or followed by a colon and its settings."""


def loopback_nics(count: int) -> list[NicSettings]:
    """Return `count` NICs from 127.0.0.1 on, each with a host of its own. All share the machine's clock."""
    return [
        NicSettings(host=f"lo{number}", device="lo", address=f"127.0.0.{number}", shard="loopback")
        for number in range(1, count + 1)
    ]


def fabric_nics(fabric: Fabric) -> list[NicSettings]:
    """Return the NICs of a testbed with their test clocks. A clock without an epoch begins to drift now."""
    epoch_ns = time.time_ns()

    def clock_of(nic: FabricNic) -> ClockSettings | None:
        if nic.clock is None:
            return None
        return ClockSettings(
            offset_ns=nic.clock.offset_ns,
            drift_ppb=nic.clock.drift_ppb,
            wander_ppb_per_sqrt_s=nic.clock.wander_ppb_per_sqrt_s,
            epoch_ns=nic.clock.epoch_ns or epoch_ns,
            seed=nic.clock.seed,
        )

    return [
        NicSettings(
            host=nic.host,
            device=nic.device,
            address=nic.address,
            netns=nic.netns,
            shard=nic.shard,
            rail=nic.rail,
            rack=nic.rack,
            clock=clock_of(nic),
        )
        for nic in fabric.nics()
    ]


def sim_settings(fleet: str) -> dict[str, Any] | None:
    """Return the simulated fleet's settings from `sim` or `sim:1024,...`; else None. Raises ConfigError."""
    kind, mark, text = fleet.partition(":")
    if kind != SIM:
        return None
    try:
        return parse_fleet(text) if mark else {}
    except ValueError as error:
        raise ConfigError(str(error)) from None


def sim_nics(settings: SimSettings) -> list[NicSettings]:
    """Return the NICs of the simulated fleet with their clocks."""
    from producers.sim.setup import draw_clocks, fleet_of  # heavy: not before a fabric is entered
    from producers.sim.workload import address_of

    fleet = fleet_of(settings)
    clocks = draw_clocks(settings, fleet.nics, time.time_ns())
    many_rails = fleet.shape.rails > 1
    return [
        NicSettings(
            host=host_of(name),
            device=device_of(name),
            address=address_of(nic),
            shard=settings.shard,
            rail=int(fleet.nic_rail[nic]) if many_rails else None,
            rack=f"rack{int(fleet.nic_rack[nic]) + 1}",
            clock=ClockSettings(**clocks[nic]),
        )
        for nic, name in enumerate(fleet.nic_ids)
    ]


def with_clocks(nics: Sequence[NicSettings], clocks: Mapping[str, ClockSettings]) -> list[NicSettings]:
    """Return the NICs with the test clocks from the settings. A clock without an epoch begins to drift now.

    Raises ConfigError for a clock whose NIC does not exist.
    """
    epoch_ns = time.time_ns()
    names = [nic_id(nic.host, nic.device) for nic in nics]
    for name in clocks:
        if name not in names:
            examples = ", ".join(names[:8]) or "none here"
            raise ConfigError(f"up.clocks.{name}: no such NIC, expected one of {examples}")
    clocked_nics = []
    for name, nic in zip(names, nics, strict=True):
        clock = clocks.get(name)
        if clock is not None:
            clock = clock.model_copy(update={"epoch_ns": clock.epoch_ns or epoch_ns})
            nic = nic.model_copy(update={"clock": clock})
        clocked_nics.append(nic)
    return clocked_nics


def file_nics(path: Path, host: str | None = None) -> list[NicSettings]:
    """Return the NICs that a fleet file lists for `host` (None: for all hosts). Raises ConfigError."""
    try:
        tables = read_tables(path, rows="nics")
    except BadFile as error:
        kinds = ", ".join((*KINDS, f"{SIM}:NICS"))
        raise ConfigError(f"fleet {path}: {error}; expected {kinds} or a fleet file") from None
    unknown = [key for key in tables if key != "nics"]
    if unknown or not isinstance(tables.get("nics"), list) or not tables["nics"]:
        raise ConfigError(
            f"fleet {path}: {f'{unknown[0]!r}: unknown key, ' if unknown else ''}expected [[nics]]"
        )
    nics = _nics(path, tables["nics"])
    _check_distinct(path, nics)
    here = [nic for nic in nics if host is None or nic.host == host]
    if not here:
        hosts = ", ".join(sorted({nic.host for nic in nics})[:8])
        raise ConfigError(
            f"fleet {path}: no NIC of host {host!r}, it lists {hosts} (up.host_name sets the name)"
        )
    return here


def _nics(path: Path, rows: list[Any]) -> list[NicSettings]:
    try:
        return _ROWS.validate_python(rows)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        number, *keys = first["loc"]
        place = ".".join([f"nics[{int(number) + 1}]", *(plain(str(key)) for key in keys)])
        message = _EXPECTED.get(first["type"], str(first["msg"]).removeprefix("Value error, "))
        value = "" if first["type"] == "missing" else f" = {short(first['input'])}"
        raise ConfigError(f"fleet {path}: {place}{value}: {message}") from None


_EXPECTED: Final = {
    "string_pattern_mismatch": "expected 1 to 128 characters without '/', '>', ':' and space",
    "extra_forbidden": "unknown key",
    "missing": "missing",
}


def _check_distinct(path: Path, nics: Sequence[NicSettings]) -> None:
    """Raise ConfigError for a NIC or an address that is listed twice. Shards may share addresses."""
    names: set[str] = set()
    at: dict[tuple[str, str], str] = {}
    for nic in nics:
        name = f"{nic.host}/{nic.device}"
        if name in names:
            raise ConfigError(f"fleet {path}: {name} is listed twice")
        names.add(name)
        other = at.setdefault((nic.shard, nic.address), name)
        if other != name:
            raise ConfigError(f"fleet {path}: {other} and {name} both have address {nic.address}")


def write_nics(path: Path, nics: Iterable[NicSettings]) -> None:
    """Write a fleet file that `file_nics` reads."""
    path.write_text(json.dumps({"nics": [nic.model_dump(mode="json") for nic in nics]}), encoding="utf-8")


def host_name(config: Config) -> str:
    """Return the name that this host has in fleet files."""
    return config.up.host_name or socket.gethostname()


def local_fleet(config: Config) -> Path:
    """Return the file that a running `up` writes, with the NICs that it probes from this machine."""
    return config.up.data_directory / "run" / "fleet.json"


def clock_pages(config: Config) -> Path:
    """Return the folder of the clock pages that `up` maintains: one page per host, with the host's name."""
    return config.up.data_directory / "run" / "clock"


def clock_hosts(config: Config) -> list[HostSettings] | None:
    """Return the hosts whose clock pages this machine maintains; None: only this machine. Raises ConfigError.

    Under `up`, these are all hosts from whose NICs it probes. `actuators.clock_file` is for one host.
    """
    path = Path(config.up.fleet)
    if config.up.fleet in KINDS or path != local_fleet(config):
        return None
    clocks: dict[str, dict[str, TestClockSettings]] = {}
    spaces: dict[str, Path | None] = {}
    for nic in file_nics(path):
        own = clocks.setdefault(nic.host, {})
        spaces[nic.host] = None if nic.netns is None else Path(nic.netns)
        if nic.clock is not None:
            own[nic.device] = TestClockSettings.model_validate(nic.clock.model_dump())
    clock_file = config.actuators.clock_file if len(clocks) == 1 else None
    return [
        HostSettings(
            host=host,
            clock_file=clock_file or clock_pages(config) / host,
            test_clocks=own,
            netns=spaces[host],
        )
        for host, own in clocks.items()
    ]


def nics_here(config: Config) -> list[NicSettings]:
    """Return the NICs of this host, or under `up` of all hosts from which it probes. Raises ConfigError."""
    if config.up.fleet in KINDS:
        raise ConfigError(f"up.fleet = {config.up.fleet!r}: a host's agent needs a fleet file")
    path = Path(config.up.fleet)
    return file_nics(path, None if path == local_fleet(config) else host_name(config))


def nic_of(config: Config, name: str | None) -> NicSettings:
    """Return the NIC that a prober serves: `name`, or this host's only NIC. Raises ConfigError."""
    if config.up.fleet in KINDS:
        raise ConfigError(f"up.fleet = {config.up.fleet!r}: a prober service needs a fleet file")
    path = Path(config.up.fleet)
    if name is not None:
        for nic in file_nics(path):
            if nic_id(nic.host, nic.device) == name:
                return nic
        raise ConfigError(f"fleet {path}: {name} is not listed")
    here = file_nics(path, host_name(config))
    if len(here) != 1:
        raise ConfigError(f"fleet {path}: {len(here)} NICs of this host, expected --nic host/device")
    return here[0]
