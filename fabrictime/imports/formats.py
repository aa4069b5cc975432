"""The file formats of `fabrictime topology import`, and the choice of the format for a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from fabrictime.imports import (
    containerlab,
    infiniband,
    lldp,
    minigraph,
    nccl,
    netbox,
    ptm,
    slurm,
    sonic,
)
from fabrictime.imports.base import MAX_BYTES, BadImport, Format, Found, Hints, NoCable, merged
from schemas.topology import Topology, TopologyFile

FORMATS: Final[dict[str, Format]] = {
    file_format.name: file_format
    for file_format in (
        Format("lldp", lldp.fits, lldp.read),
        Format("sonic", sonic.fits, sonic.read),
        Format("minigraph", minigraph.fits, minigraph.read),
        Format("containerlab", containerlab.fits, containerlab.read),
        Format("slurm", slurm.fits, slurm.read),
        Format("ibnetdiscover", infiniband.fits, infiniband.read),
        Format("nccl", nccl.fits, nccl.read),
        Format("ptm", ptm.fits, ptm.read),
        Format("netbox", netbox.fits, netbox.read),
    )
}
"""Format by name. Without a name, the first one that fits a text is used."""


def format_of(text: str, name: str = "") -> Format:
    """Return the format called `name`; without a name, the first that fits the text. Raises BadImport."""
    if name:
        if name not in FORMATS:
            raise BadImport(f"format {name!r}: expected one of {', '.join(FORMATS)}")
        return FORMATS[name]
    for file_format in FORMATS.values():
        if file_format.fits(text):
            return file_format
    raise BadImport(f"no format fits: expected one of {', '.join(FORMATS)}; choose one with --format")


def import_files(
    paths: Sequence[Path], name: str = "", hints: Hints | None = None, conflicts: list[str] | None = None
) -> TopologyFile:
    """Return the topology that all files describe together. A file describes the host `hints.host`, or else
    the host of the file's name without suffix. With a list `conflicts`, a cable that contradicts another one
    is left out, and the list gets a line.

    Raises BadImport with one line that names the file, NoCable if the files state neither a cable nor a NIC,
    OSError if a file cannot be read.
    """
    every: list[Found] = []
    file_hints = Hints() if hints is None else hints
    for path in paths:
        if path.stat().st_size > MAX_BYTES:
            raise BadImport(f"{path}: above {MAX_BYTES >> 20} MiB")
        text = path.read_bytes().decode("utf-8-sig", "replace")
        try:
            part = format_of(text, name).read(text, replace(file_hints, host=file_hints.host or path.stem))
        except BadImport as error:
            raise BadImport(f"{path}: {error}") from None
        part.cables = [replace(cable, place=f"{path.name} {cable.place}".strip()) for cable in part.cables]
        every.append(part)
    try:
        file = merged(every, file_hints, conflicts)
        Topology(file, "import")
    except ValueError as error:
        raise BadImport(str(error)) from None
    if not file.links and not any(node.kind == "host" and node.ports for node in file.nodes):
        raise NoCable(f"{', '.join(map(str, paths))[:200]}: no cable between two nodes of the fabric")
    return file
