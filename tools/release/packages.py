"""The packages of a release: the agent with the command line, and the services of a fleet.

The services' package depends on the agent's package of the same version. It adds the Python packages of the
extra `server` to the agent's environment, so that a machine has the project's code once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.install import LOCK, entries_of, names_of, needed_by
from tools.release.wheels import MACHINES

COMMON: Final = "common.conf"
"""End of all units of a package that has this file."""
SCRIPTS: Final = ("postinst", "prerm", "postrm")
"""Scripts of a package by Debian's names. `systemd.sh` follows their first `set -e`."""
_UNITS: Final = "usr/lib/systemd/system"


@dataclass(frozen=True, slots=True)
class Package:
    """One package of a release: its texts, its Python packages and its further files."""

    name: str
    folder: str
    """Folder of its units, settings and scripts beside this module."""
    summary: str
    description: str
    settings: str
    """Name of its settings file in /etc/fabrictime."""
    files: tuple[tuple[str, str], ...]
    """(name, target folder) of its other files."""
    extras: tuple[str, ...] = ()
    base: Package | None = None
    """The package whose environment it completes; None if it brings its own."""
    machines: tuple[str, ...] = MACHINES
    """The processors for which all of its Python packages have wheels."""

    @property
    def sources(self) -> Path:
        """The folder of the package's units, settings and scripts."""
        return Path(__file__).parent / self.folder

    def text(self, name: str) -> str:
        """Return the text of one of the package's files as it is installed."""
        text = (self.sources / name).read_text(encoding="utf-8")
        common = self.sources / COMMON
        if name.endswith(".service") and common.exists():
            text += common.read_text(encoding="utf-8")
        if name in SCRIPTS:
            functions = (Path(__file__).parent / "systemd.sh").read_text(encoding="utf-8")
            text = text.replace("set -e\n", f"set -e\n{functions}", 1)
        return text

    def requirements(self) -> dict[str, str]:
        """Return the lock file's entries of the package's Python dependencies, by dependency."""
        entries = entries_of(LOCK.read_text(encoding="utf-8"))
        needed = needed_by(names_of(["", *self.extras]), entries)
        present = set() if self.base is None else set(self.base.requirements())
        return {package: entries[package] for package in sorted(needed - present)}


AGENT: Final = Package(
    "fabrictime",
    "agent",
    "Agent and command line of fabrictime",
    """Puts every NIC of a GPU cluster on one nanosecond timeline, measures one-way
delays and watches links, from software alone. This package runs the agent of
one host; Kafka and the stream workers run elsewhere.""",
    "fabrictime.toml",
    (("fabrictime.service", _UNITS), ("60-fabrictime.rules", "lib/udev/rules.d")),
)
SERVICES: Final = Package(
    "fabrictime-services",
    "services",
    "Services of a fabrictime fleet",
    """Stream workers, history sink, live page, notifier, and where no Kafka or
ClickHouse is named, an embedded log and history. One machine of a fleet runs
them; further machines run single services.""",
    "services.toml",
    (("fabrictime-services.service", _UNITS), ("fabrictime-service@.service", _UNITS)),
    ("server",),
    AGENT,
    ("x86_64",),  # Faust has no wheel for others
)
PACKAGES: Final = (AGENT, SERVICES)
