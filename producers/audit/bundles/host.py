"""A host as a support bundle shows it: a sosreport, a sysinfo-snapshot, or an nvidia-bug-report log.

No command runs. A file or output that the bundle lacks raises NotRecorded: whether the host has it is not
known, so that no check takes its absence for a fault.
"""

from __future__ import annotations

import gzip
import os
import posixpath
import re
import zlib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from producers.audit.backend.rdma_ports import DEVICES as RDMA
from producers.audit.bundles.forms import FORMS, Convert, Section, sections, sysctl_files
from producers.audit.bundles.gpus import nvml_report, pci_files
from producers.audit.bundles.rdma import ibdev2netdev_files, ibstat_files, ibstatus_files, ibv_devinfo_files
from producers.audit.gpu.sku import DEVICES
from producers.audit.host.base import Missing, NotRecorded, Unreadable, as_unreadable
from producers.audit.host.network import Dcb, Interface, Neighbour, Route, Rule
from producers.audit.load.traffic_plan import TrafficRound
from producers.audit.settings import CheckSettings
from producers.ports.ethtool import LinkSettings
from schemas.input_error import InputError
from schemas.settings_file import read_tables

SOURCES: Final = Path(__file__).with_name("sources.toml")
CONVERTERS: Final[Mapping[str, Convert]] = {**FORMS, "nvml-report": nvml_report}
IMPLIED: Final[Mapping[str, Callable[[str], dict[str, str]]]] = {
    "sysctl": sysctl_files,
    "lspci": pci_files,
    "ibstatus": ibstatus_files,
    "ibstat": ibstat_files,
    "ibv_devinfo": ibv_devinfo_files,
    "ibdev2netdev": ibdev2netdev_files,
}
"""Functions that return the files of a host that an output implies, by the output's form."""
LISTED: Final = re.compile(rf"^({re.escape(DEVICES)}|{re.escape(RDMA)}(/[^/]+/ports)?)$")
"""Directories that outputs list in full."""
REPORT: Final = "nvidia-bug-report"
REPORT_HEAD: Final = "Start of NVIDIA bug report log file"
MAX_FILE_BYTES: Final = 256 << 20
MARKS: Final = ("sos_commands", "commands_txt_output", "proc", "sys")
"""Names in the top folder of a bundle: of sosreport, of sysinfo-snapshot, of a host's root."""
INVOKED: Final = "Invoked Command: "
"""Begin of the first line of sysinfo-snapshot's files."""


class BadBundle(InputError):
    """The path holds no support bundle that is known."""


def open_bundle(path: Path, settings: CheckSettings | None = None) -> BundleHost:
    """Return the host of a bundle: a folder, its parent, or an nvidia-bug-report log. Raises BadBundle."""
    try:
        if path.is_file():
            return BundleHost(None, _report(path), path, settings)
        if not path.is_dir():
            raise BadBundle(f"{path}: expected a folder, or an {REPORT} log")
        folders = [path, *sorted(child for child in path.iterdir() if child.is_dir() and _is_in(path, child))]
        root = next((folder for folder in folders if any((folder / mark).is_dir() for mark in MARKS)), None)
        logs = sorted(log for log in path.glob(f"{REPORT}*.log*") if log.is_file() and _is_in(path, log))
    except OSError as error:
        raise BadBundle(f"{path}: {error.strerror or error}") from None
    if root is None and not logs:
        raise BadBundle(
            f"{path}: expected an unpacked sosreport (sos_commands), sysinfo-snapshot (commands_txt_output), "
            f"or an {REPORT} log"
        )
    return BundleHost(root, _report(logs[0]) if logs else [], path, settings)


def _is_in(folder: Path, path: Path) -> bool:
    """Return whether a path leads to a place in a folder. A loop of links leads nowhere."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def _content(at: Path) -> bytes:
    """Return a file's content. Raises Unreadable."""
    try:
        with at.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise as_unreadable(str(at), error) from error
    if len(content) > MAX_FILE_BYTES:
        raise Unreadable(f"{at}: expected at most {MAX_FILE_BYTES >> 20} MiB")
    return content


def _report(path: Path) -> list[Section]:
    """Return the sections of an nvidia-bug-report log, packed by gzip or not. Raises BadBundle."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadBundle(f"{path}: {error}") from None
    text = content.decode("utf-8", "replace")
    if len(content) > MAX_FILE_BYTES or REPORT_HEAD not in text[:4096]:
        raise BadBundle(f"{path}: expected an {REPORT} log of at most {MAX_FILE_BYTES >> 20} MiB")
    return sections(text)


def _lacks(thing: str) -> NotRecorded:
    return NotRecorded(f"{thing}: not in the bundle")


class BundleHost:
    """The host of a bundle, as a `Host`. `folder`: the bundle's files; `report`: sections of its log."""

    nics: tuple[str, ...] = ()

    def __init__(
        self, folder: Path | None, report: list[Section], path: Path, settings: CheckSettings | None
    ) -> None:
        self.settings = settings or CheckSettings()
        self._folder, self._path = folder, path
        self._files = {
            posixpath.normpath(section.path): section.content
            for section in report
            if section.path and not section.is_absent
        }
        self._absent = {section.path for section in report if section.is_absent}
        self._outputs = {section.command: section.content for section in report if section.command}
        self._sources: Mapping[str, Any] = read_tables(SOURCES)

    @property
    def name(self) -> str:
        """Return the host's name, or the bundle's if it states none."""
        for path in ("/proc/sys/kernel/hostname", "/etc/hostname"):
            try:
                return self.read(path)
            except (NotRecorded, Unreadable):
                continue
        return self._path.name

    def _at(self, path: str) -> Path:
        """Return where a path of the host is in the bundle. Raises NotRecorded."""
        if self._folder is None:
            raise _lacks(path)
        at = self._folder / path.lstrip("/")
        if not _is_in(self._folder, at):
            raise NotRecorded(f"{path}: leads out of the bundle")
        return at

    def _first(self, names: list[str], filled: str = "") -> str | None:
        """Return the text of the first file among `names` that exists in the bundle; None if none exists."""
        if (folder := self._folder) is None:
            return None
        for name in names:
            at = folder / name.replace("{}", filled)
            if _is_in(folder, at) and at.is_file():
                text = _content(at).decode("utf-8", "replace")
                return text.partition("\n")[2] if text.startswith(INVOKED) else text
        return None

    @cached_property
    def _implied(self) -> Mapping[str, str]:
        """Return files of the host that outputs in the bundle imply, such as the kernel's settings."""
        files: dict[str, str] = {}
        for row in self._sources["implied"]:
            output = self._first(row["files"]) or self._outputs.get(row.get("section", ""), "")
            files |= IMPLIED[row["form"]](output)
        return files

    def read(self, path: str) -> str:
        """Return a file's text, stripped. Raises NotRecorded, Missing, Unreadable."""
        return self.read_bytes(path).decode("utf-8", "replace").strip("\n\x00 ")

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content. Raises NotRecorded, Missing, Unreadable."""
        try:
            if self._folder and (at := self._at(path)).is_file():
                return _content(at)
        except OSError as error:
            raise as_unreadable(path, error) from error
        if path in self._absent:
            raise Missing(f"{path}: No such file or directory")
        text = self._files.get(path, self._implied.get(path))
        for row in self._sources["file"] if text is None else ():
            text = self._first(row["files"]) if row["path"] == path else text
        if text is None:
            raise _lacks(path)
        return text.encode()

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory, as far as the bundle has them. Raises NotRecorded."""
        if self._folder and (at := self._at(path)).is_dir():
            return sorted(os.listdir(at))
        if LISTED.match(path) and (children := self._children(path)):
            return children
        for row in self._sources["folder"]:
            if row["path"] == path and self._first(row["files"]) is not None:
                return list(row["names"])
        raise _lacks(path)

    def _children(self, path: str) -> list[str]:
        """Return the names in a directory of the files that outputs imply."""
        depth = path.count("/") + 1
        return sorted({name.split("/")[depth] for name in self._implied if name.startswith(f"{path}/")})

    def target(self, path: str) -> str:
        """Return the path that a symbolic link leads to. Raises NotRecorded."""
        at = self._at(path)
        if self._folder is None or not at.exists():
            raise _lacks(path)
        return "/" + str(at.resolve().relative_to(self._folder.resolve()))

    def run(self, *command: str) -> str:
        """Return the output of a command, from the bundle's file that stands for it. Raises NotRecorded."""
        for row in self._sources["output"]:
            filled = _filled(row["command"], command)
            if filled is None:
                continue
            text = self._first(row["files"], filled)
            text = self._outputs.get(row.get("section", "")) if text is None else text
            output = "" if text is None else CONVERTERS[row["form"]](text, command)
            if output:
                return output
        raise _lacks(" ".join(command[:3]))

    def load(self, limit_s: float, *command: str) -> str:
        """Raise NotRecorded: a bundle runs no load."""
        raise _lacks(command[0])

    def now_s(self) -> float:
        """Return the time, s since the Unix epoch, at which the bundle was written."""
        return self._path.stat().st_mtime

    def space(self, path: str) -> tuple[int, int, int, int]:
        """Raise NotRecorded."""
        raise _lacks(f"space of {path}")

    def clock_status(self) -> int:
        """Raise NotRecorded."""
        raise _lacks("adjtimex")

    def traffic_round(self) -> TrafficRound:
        """Raise NotRecorded."""
        raise _lacks("a round of traffic")

    def pause(self, wanted_s: float) -> float:
        """Raise NotRecorded: a bundle has no second reading."""
        raise _lacks("a second reading")

    def interfaces(self) -> list[Interface]:
        """Raise NotRecorded."""
        raise _lacks("network interfaces")

    def routes(self) -> list[Route]:
        """Raise NotRecorded."""
        raise _lacks("routes")

    def rules(self) -> list[Rule]:
        """Raise NotRecorded."""
        raise _lacks("policy rules")

    def neighbours(self) -> list[Neighbour]:
        """Raise NotRecorded."""
        raise _lacks("neighbours")

    def dcb(self, interface: str) -> Dcb | None:
        """Raise NotRecorded."""
        raise _lacks(f"priorities of {interface}")

    def ethtool_statistics(self, interface: str) -> dict[str, int]:
        """Raise NotRecorded."""
        raise _lacks(f"counters of {interface}")

    def link_settings(self, interface: str) -> LinkSettings | None:
        """Raise NotRecorded."""
        raise _lacks(f"link settings of {interface}")

    def echo(self, address: str, size: int) -> float | None:
        """Raise NotRecorded."""
        raise _lacks("an echo")

    def connect(self, address: str, port: int) -> float | None:
        """Raise NotRecorded."""
        raise _lacks("a connection")

    def exchange(self, address: str, port: int, request: bytes) -> bytes | None:
        """Raise NotRecorded."""
        raise _lacks("an answer of a server")


def _filled(pattern: list[str], command: tuple[str, ...]) -> str | None:
    """Return the text that fills {} in the pattern, empty without {}; None if the command does not match."""
    is_open, name = pattern[-1] == "...", ""
    parts = pattern[:-1] if is_open else pattern
    if len(command) < len(parts) or (len(command) > len(parts) and not is_open):
        return None
    for part, argument in zip(parts, command, strict=False):
        before, hole, after = part.partition("{}")
        if hole and argument.startswith(before) and argument.endswith(after):
            name = argument[len(before) : len(argument) - len(after)]
        elif part != argument:
            return None
    return name
