"""Measures the time from the agent's package on a clean host to a synchronised clock.

The host is a root file system of Debian 12, made by mmdebstrap, with a network namespace of its own. Log,
worker and a second host run outside. A relay carries the log's port into the namespace. The host boots its
own systemd, which starts the agent by the package's unit.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._fabric import running_up
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.operate._booted_host import BootedHost, reason_without_groups
from fabrictime.bench.operate._relay import relay
from fabrictime.state.live_figures import Watcher

ROOT: Final = Path(__file__).resolve().parents[3]
PACKAGES: Final = ROOT / "dist"
"""Where `make dist` puts the packages."""
INCLUDED: Final = "python3,passwd,ca-certificates,systemd-sysv"
HOSTS: Final = ("measured", "other")
KEY: Final = "fleet.key"
LIMIT_S: Final = 180.0
MAKE_ROOT_S: Final = 900.0
NETWORK: Final = 71
"""The hosts' network is 10.71.0.0/24."""
UNIT: Final = "fabrictime.service"
STAGES: Final = ("map", "solve")


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Return the times of an installation; `quick` has no effect."""
    packages = sorted(PACKAGES.glob("fabrictime_*_amd64.deb"))
    reason = _reason(packages)
    if reason is not None:
        return dict.fromkeys(("install_to_synced_s", "start_to_synced_s"), Missing(reason))
    with tempfile.TemporaryDirectory(prefix="fabrictime-install-") as folder:
        return installed(packages[-1], Path(folder), progress)


def reason_without_root() -> str | None:
    """Return the reason why namespaces cannot be made here; None if they can."""
    return "needs root, for network namespaces" if os.geteuid() else None


def _reason(packages: list[Path]) -> str | None:
    if (reason := reason_without_root()) is not None:
        return reason
    if not packages:
        return "no package in dist/: make dist builds it"
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed"
    return reason_without_groups()


def installed(
    package: Path, folder: Path, progress: Progress, archive: Path | None = None
) -> dict[str, Value]:
    """Install the package on a clean host and return the figures.

    `archive` is a root file system as a tar file; without it, mmdebstrap makes the root file system.
    """
    root = folder / "root"
    root.mkdir()
    progress("making a root file system of Debian 12")
    _unpack_root(root, folder, archive)
    with (
        cabled_namespaces(folder, 1, NETWORK) as netns,
        _services(folder, netns[1]) as port,
        relay(netns[0], port),
    ):
        shutil.copyfile(package, root / "fabrictime.deb")
        shutil.copy(folder / KEY, root / KEY)
        watcher = Watcher(f"127.0.0.1:{port}")
        watcher.start()
        try:
            with BootedHost(root, HOSTS[0], netns[0]) as host:
                return _timed(host, port, watcher, progress)
        finally:
            watcher.stop()


def _timed(host: BootedHost, port: int, watcher: Watcher, progress: Progress) -> dict[str, Value]:
    began_s = time.monotonic()
    host.run("dpkg --install /fabrictime.deb")
    unpacked_s = time.monotonic() - began_s
    host.run(f"fabrictime init --log 127.0.0.1:{port} --host {HOSTS[0]} --join /{KEY} --write")
    ready_s = time.monotonic() - began_s
    progress(f"installed after {unpacked_s:.1f} s, settings written after {ready_s:.1f} s")
    host.run(f"systemctl start {UNIT}")
    try:
        synced_s = _wait_synced(watcher, began_s)
    except TimeoutError as error:
        journal = host.tried(f"journalctl --unit {UNIT} --no-pager --lines 20 --output cat").stdout
        raise TimeoutError(f"{error}; the agent: {journal[-600:]}") from None
    progress(f"synchronised after {synced_s:.1f} s, {synced_s - ready_s:.1f} s after the agent's start")
    note = f"dpkg {unpacked_s:.1f} s, init {ready_s - unpacked_s:.1f} s"
    return {
        "install_to_synced_s": Figure(synced_s, note=note),
        "start_to_synced_s": Figure(synced_s - ready_s),
    }


def _wait_synced(watcher: Watcher, began_s: float) -> float:
    """Return the seconds until the measured host's clock is SYNCED. Raises TimeoutError."""

    def states() -> dict[str, str]:
        with watcher.view.lock:
            return {name: clock.state for name, clock in watcher.view.clocks.items()}

    def is_synced() -> bool:
        return any(name.startswith(HOSTS[0]) and state == "SYNCED" for name, state in states().items())

    if wait_for(is_synced, began_s + LIMIT_S - time.monotonic()) is None:
        raise TimeoutError(f"not synchronised within {LIMIT_S:.0f} s: {states()}")
    return time.monotonic() - began_s


def _unpack_root(root: Path, folder: Path, archive: Path | None) -> None:
    if archive is None:
        archive = folder / "root.tar"
        command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={INCLUDED}"]
        run_command([*command, "bookworm", str(archive)], MAKE_ROOT_S)
    run_command(["tar", "-C", str(root), "-xf", str(archive)])


@contextlib.contextmanager
def cabled_namespaces(folder: Path, nics: int, network: int) -> Iterator[tuple[str, str]]:
    """Make two namespaces, with cables between NICs of the same name; yield the namespaces' paths.

    NIC eth0 of the first has the address 10.`network`.0.1/24; each further NIC is in the next network.
    """
    names = tuple(f"ft-{folder.name[-8:]}-{number}" for number in range(2))
    try:
        for name in names:
            run_command(["ip", "netns", "add", name])
            run_command(["ip", "-n", name, "link", "set", "lo", "up"])
        for nic in range(nics):
            device = f"eth{nic}"
            peer = ["type", "veth", "peer", device, "netns", names[1]]
            run_command(["ip", "-n", names[0], "link", "add", device, *peer])
            for number, name in enumerate(names, 1):
                address = f"10.{network + nic}.0.{number}/24"
                run_command(["ip", "-n", name, "address", "add", address, "dev", device])
                run_command(["ip", "-n", name, "link", "set", device, "up"])
        yield f"/run/netns/{names[0]}", f"/run/netns/{names[1]}"
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@contextlib.contextmanager
def _services(folder: Path, netns: str) -> Iterator[int]:
    """Run log, worker and the agent of the other host; yield the log's port once all are ready."""
    fleet, settings = folder / "fleet.toml", folder / "fabrictime.toml"
    key = folder / KEY
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32))
    fleet.write_text(
        f'[[nics]]\nhost = "{HOSTS[1]}"\ndevice = "eth0"\naddress = "10.{NETWORK}.0.2"\nnetns = "{netns}"\n'
    )
    settings.write_text(
        f'[up]\nfleet = "{fleet}"\nhost_name = "{HOSTS[1]}"\nservices = "on"\nweb = false\nworkers = 1\n'
        'history_url = "http://127.0.0.1:9"\n'
        f'[probes]\nkey_file = "{key}"\n[log]\nport = 0\n'
        f"[streams]\nstages = {list(STAGES)!r}\n".replace("'", '"')
    )
    with running_up(["--config", str(settings)], folder / "data", folder / "up.log", LIMIT_S) as bootstrap:
        yield int(bootstrap.rpartition(":")[2])


def run_command(command: list[str], limit_s: float = LIMIT_S) -> str:
    """Return the output of a command. Raises RuntimeError with its last lines if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[-6:])}: {(done.stdout + done.stderr).strip()[-400:]}")
    return done.stdout
