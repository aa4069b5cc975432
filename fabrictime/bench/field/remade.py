"""Removes and recreates resources of a running pipeline, and measures the time until it has recovered.

A small network is probed. Devices, namespaces, files, process ids, topics, consumer groups, tables, the
broker and the data directory are recreated, one after another. The pipeline has recovered when all
services work, evidence is fresh and each NIC's probes are answered. An alert about another subject is false.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import require_namespaces, running_up, with_any_ports
from fabrictime.bench.field import _remade_host, _remade_processes, _remade_storage
from fabrictime.bench.field._remade import LIMIT_S, NICS, Outcome, Remade, is_well
from fabrictime.bench.field._small_network import HOST, SmallNetwork
from fabrictime.testbed.processes.child import run_inside
from fabrictime.testbed.processes.process_ids import enter_own_ids


@contextlib.contextmanager
def _running(
    network: SmallNetwork, folder: Path, progress: Progress, outcome: Outcome, log_url: str | None = None
) -> Iterator[Remade]:
    """Run `up` on the network, with its own log unless `log_url` names one; yield once all services work."""
    config, fleet, data = folder / "fabrictime.toml", folder / "fleet.toml", folder / "data"
    dumps = folder / _remade_host.DUMPS
    dumps.mkdir()
    recorder = f'[collectives]\nflight_recorder_directory = "{dumps}"\n'
    config.write_text(with_any_ports(f'[up]\nhost_name = "{HOST}"\n{recorder}'), encoding="utf-8")
    fleet.write_text(network.fleet(), encoding="utf-8")
    options = ["--fleet", str(fleet), "--with", "services", "--config", str(config)]
    options += [] if log_url is None else ["--log", log_url]
    progress("remade: starting all services")
    with running_up(options, data, folder / "up.log", is_ready=is_well):
        yield Remade(network, data, progress, outcome)


def _with_own_log(
    network: SmallNetwork, progress: Progress, outcome: Outcome, quick: bool, ids: str | None
) -> None:
    """Recreate all resources, one after another; `ids` is the reason why no process id can be chosen."""
    with _folder() as folder, _running(network, folder, progress, outcome) as remade:
        _remade_host.network_things(remade)
        _remade_host.files(remade)
        _remade_host.flight_recorder(remade)
        _remade_host.cgroups(remade)
        _remade_processes.process_ids(remade, ids)
        _remade_storage.groups(remade, quick)
        _remade_storage.topics(remade, quick)
        _remade_storage.history(remade, quick)
        if not quick:
            _remade_storage.data_directory(remade)


def _with_moving_log(network: SmallNetwork, progress: Progress, outcome: Outcome) -> None:
    """Move the log to another address, behind the name that the services know."""
    with (
        _folder() as folder,
        _remade_storage.moving_log(folder) as log,
        _running(network, folder, progress, outcome, log.url) as remade,
    ):
        remade.measure("broker's address", log.move)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fabrictime-remade-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _inside(progress: Progress, quick: bool) -> Outcome:
    """Measure in a process that has permission to make namespaces."""
    ids = enter_own_ids()
    network, outcome = SmallNetwork(NICS), Outcome()
    try:
        _with_own_log(network, progress, outcome, quick, ids)
        _with_moving_log(network, progress, outcome)
    finally:
        network.close()
    return outcome


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Recreate all resources behind a running pipeline; return the figures."""
    require_namespaces()
    outcome: Outcome = run_inside(lambda: _inside(progress, quick), timeout_s=3600)
    for line in outcome.false_alerts:
        progress(f"remade: false alert: {line}")
    times_s = {thing: took_s for thing, took_s in outcome.times_s.items() if took_s is not None}
    slowest = max(times_s, key=lambda thing: times_s[thing], default="nothing recovered")
    lost = ", ".join(thing for thing in outcome.times_s if thing not in times_s)
    reasons = "; ".join(f"{thing}: {reason}" for thing, reason in outcome.missing.items())
    return {
        "remade_things": float(len(outcome.times_s)),
        "remade_things_missing": Figure(float(len(outcome.missing)), note=reasons),
        "remade_things_recovered": Figure(len(times_s) / max(1, len(outcome.times_s)), note=lost),
        "recovery_s": Figure(times_s.get(slowest, LIMIT_S), note=slowest),
        "false_alerts": float(len(outcome.false_alerts)),
    }
