"""Writes the traced fabric, or a topology file, in the format of a scheduler."""

from __future__ import annotations

import contextlib
import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fabrictime.commands.options import running_log
from fabrictime.commands.views.topology import Reader, source_of
from fabrictime.exports.formats import FORMATS
from fabrictime.exports.networks import networks_of
from fabrictime.state.traced_fabric import file_of
from schemas.ids import natural
from schemas.input_error import InputError
from schemas.topology import Topology, load_topology

if TYPE_CHECKING:
    from fabrictime.runtime.config import Config


def exported(name: str, file: Path | None, settings: Config | None, network: str | None) -> str:
    """Return the fabric in the format `name`, from a topology file or from the log of `settings`.

    Raises ValueError if the format or the network does not exist, the fabric has no host at a switch, or the
    log cannot be read; OSError if the file cannot be read.
    """
    if name not in FORMATS:
        raise InputError(f"format {name!r}: expected one of {', '.join(FORMATS)}")
    topology = load_topology(file) if settings is None and file is not None else _traced(settings)
    networks = networks_of(topology)
    if not networks:
        raise InputError("the fabric has no host at a switch: two hosts must probe each other first")
    if network is not None:
        names = [one.name for one in networks]
        networks = tuple(one for one in networks if one.name == network)
        if not networks:
            raise InputError(f"network {network!r}: expected one of {', '.join(names)}")
    multihomed = sorted({host for one in networks for host in one.multihomed}, key=natural)
    if multihomed:
        print(f"cabled to several groups, listed in one: {', '.join(multihomed)}", file=sys.stderr)
    return FORMATS[name](networks)


def differences(earlier: Path, text: str) -> list[str]:
    """Return the lines that differ between an earlier export and `text`. Raises OSError."""
    lines = earlier.read_text(encoding="utf-8").splitlines()
    changes = difflib.unified_diff(lines, text.splitlines(), lineterm="", n=0)
    return [
        f"{'exported' if line[0] == '-' else 'measured'}: {line[1:].strip()}"
        for line in changes
        if not line.startswith(("---", "+++", "@@"))
    ]


def _traced(settings: Config | None) -> Topology:
    if settings is None:
        raise InputError("topology export: expected a topology file or a log")
    with contextlib.closing(Reader(running_log(settings), settings.kafka.registry())) as reader:
        reader.catch_up()
    return Topology(file_of(reader.picture(source_of(settings).topology)))
