"""Runs one service in this process, for the supervisor and for containers.

The exit code is the service's own, or 2 for settings that the service cannot use.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fabrictime.metrics.export import start
from fabrictime.runtime.log_format import TEXT, set_format
from fabrictime.runtime.ready import die_with_parent
from fabrictime.testbed.processes.scheduling_priority import apply_priority, aside

if TYPE_CHECKING:
    from fabrictime.runtime.config import Config
    from schemas.process_part import Part


APART: Final = ("links", "policy", "sink")
"""Stages that have a process of their own under `up`: detection and decisions must not wait behind other
stages, and no stage must wait for storage."""


def _log(config: Config, nic: str | None) -> int | None:
    from fabrictime.log.server import main

    return main(config.log)


def _history(config: Config, nic: str | None) -> int | None:
    from fabrictime.history.server import main

    return main(config.history)


def _streams(config: Config, nic: str | None) -> int | None:
    from streams.app import main

    return main(config.streams)


def _worker(config: Config, nic: str | None) -> int | None:
    from streams.app import main

    stages = tuple(stage for stage in config.streams.stages if stage not in APART)
    return main(config.streams.model_copy(update={"stages": stages}))


def _links(config: Config, nic: str | None) -> int | None:
    from streams.app import main

    return main(config.streams.model_copy(update={"stages": ("links",)}))


def _policy(config: Config, nic: str | None) -> int | None:
    from streams.app import main

    return main(config.streams.model_copy(update={"stages": ("policy",)}))


def _sink(config: Config, nic: str | None) -> int | None:
    from streams.app import main

    return main(config.streams.model_copy(update={"stages": ("sink",)}))


def _web(config: Config, nic: str | None) -> int | None:
    from fabrictime.web.server import main

    return main(config.web)


def _prober(config: Config, nic: str | None) -> int | None:
    from fabrictime.runtime.fleet import nic_of
    from producers.probe.service import main

    return main(config.probes, nic_of(config, nic or ""))


def _agent(config: Config, nic: str | None) -> int | None:
    """Run all parts of one host's agent: the probers of its NICs in this thread, other parts in threads."""
    from fabrictime.runtime.fleet import nics_here
    from fabrictime.runtime.parts import run_parts
    from producers.probe.host_service import main

    nics = nics_here(config)
    services = {"flows": _flows, "collectives": _collectives, "auditor": _auditor}
    if config.up.clock_pages:
        services["clock"] = _actuator
    parts = {name: partial(service, config, None) for name, service in services.items()}
    if nics and shares_process(config.up.act):
        parts["act"] = partial(_act, config, nics[0].host)
    return run_parts(("prober", partial(main, config.probes, nics)), parts)


def _rdma_probe(config: Config, nic: str | None) -> int | None:
    from fabrictime.runtime.fleet import nic_of
    from producers.probe.rdma.service import main

    return main(config.rdma_probes, nic_of(config, nic))


def _flows(config: Config, nic: str | None, part: Part | None = None) -> int | None:
    from fabrictime.runtime.fleet import nics_here
    from producers.flows.service import main

    return main(config.flows, nics_here(config), part)


def _collectives(config: Config, nic: str | None, part: Part | None = None) -> int | None:
    from fabrictime.runtime.fleet import clock_hosts, nics_here
    from producers.collectives.service import main

    pages = {host.host: host.clock_file for host in clock_hosts(config) or ()}
    nics = nics_here(config)
    if not pages and config.actuators.clock_file is not None:
        pages = {nic.host: config.actuators.clock_file for nic in nics}
    return main(config.collectives, nics, pages, part)


def _auditor(config: Config, nic: str | None, part: Part | None = None) -> int | None:
    from fabrictime.runtime.fleet import nics_here
    from producers.audit.service import main

    return main(config.audit, nics_here(config), part)


def _sim(config: Config, nic: str | None) -> int | None:
    from producers.sim.control import socket_path
    from producers.sim.service import main

    return main(config.sim, socket_path(config.up.data_directory), config.actuators.control_path)


def _actuator(config: Config, nic: str | None, part: Part | None = None) -> int | None:
    from actuators.clock.service import main
    from fabrictime.runtime.fleet import clock_hosts

    return main(config.actuators, clock_hosts(config), part)


def shares_process(act: str) -> bool:
    """Return whether a host's flow actuator runs inside its agent's process. `act`: the setting `up.act`.

    It does if the host only observes by default, which saves the 40 MB of a process. An actuator that acts
    has its own process, because it must answer at once.
    """
    return act in ("auto", "observe")


def _act(config: Config, nic: str | None, part: Part | None = None) -> int | None:
    from actuators.clock.service import this_host
    from actuators.flows.actuator import main
    from fabrictime.runtime.fleet import SIM, clock_hosts

    hosts = clock_hosts(config) or [this_host(config.actuators)]
    return main(config.actuators, hosts, name=nic, simulated=nic == SIM, part=part)


def _notify(config: Config, nic: str | None) -> int | None:
    from actuators.notify.service import main

    return main(config.notify)


def _drains(config: Config, nic: str | None) -> int | None:
    from actuators.nodes.service import main

    return main(config.actuators)


SERVICES: Final[dict[str, Callable[[Config, str | None], int | None]]] = {
    "log": _log,
    "history": _history,
    "streams": _streams,
    "worker": _worker,
    "links": _links,
    "policy": _policy,
    "sink": _sink,
    "web": _web,
    "agent": _agent,
    "prober": _prober,
    "rdma-probe": _rdma_probe,
    "flows": _flows,
    "collectives": _collectives,
    "auditor": _auditor,
    "sim": _sim,
    "actuator": _actuator,
    "act": _act,
    "notify": _notify,
    "drains": _drains,
}


SETTLE_S: Final = (3.0, 7.0)
"""Pauses before loaded objects are hidden for the first and for the second time, s. By the first, a service
has loaded its own permanent objects; by the second, those of its fleet.
"""
GENERATIONS: Final = (2_000, 20, 50)


def keep_still() -> None:
    """Exclude permanent objects from garbage collection.

    A full collection stops every thread for 40 ms or more, which is as long as a failover takes.
    """

    def settle(left: Sequence[float]) -> None:
        gc.collect()
        gc.freeze()
        if left:
            wait(left)

    def wait(left: Sequence[float]) -> None:
        timer = threading.Timer(left[0], settle, [left[1:]])
        timer.daemon = True
        timer.start()

    gc.set_threshold(*GENERATIONS)
    wait(SETTLE_S)


LOADED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "log": ("log", ("fabrictime.log.server",)),
    "links": ("streams", ("streams.app", "streams.runtime.faust.worker")),
    "policy": ("streams", ("streams.app", "streams.runtime.faust.worker")),
    "act": ("actuators", ("actuators.flows.actuator", "actuators.clock.service", "fabrictime.runtime.fleet")),
}
"""Settings table and modules of each service in the real-time scheduling class. Loading takes up to a second
of a processor, so it is done before entering that class.
"""


def load_all(name: str, path: Path | None) -> Config:
    """Return the settings. For a service in `LOADED`, load its code and check its table at once."""
    from fabrictime.runtime.config import load

    config = load(path)
    if name in LOADED:
        table, modules = LOADED[name]
        for module in modules:
            importlib.import_module(module)
        getattr(config, table)
    return config


def run(name: str, path: Path | None, nic: str | None = None) -> int:
    """Run service `name` until it ends and return its exit code."""
    apply_priority(name)  # before anything is loaded
    die_with_parent()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=TEXT)
    keep_still()
    if name not in SERVICES:
        return _refuse(f"service {name!r}: expected one of {', '.join(SERVICES)}")
    try:
        config = aside(lambda: load_all(name, path))
        set_format(config.up.log_format)
        exports = aside(lambda: start(config.metrics))
        with contextlib.closing(exports):
            return SERVICES[name](config, nic) or 0
    except ValueError as error:
        from fabrictime.runtime.config import ConfigError
        from schemas.topology import TopologyError

        if isinstance(error, ConfigError | TopologyError):
            return _refuse(str(error))
        raise


def _refuse(line: str) -> int:
    from fabrictime.runtime.supervisor import CONFIG_EXIT

    print(f"fabrictime: {line}", file=sys.stderr, flush=True)
    return CONFIG_EXIT


def main() -> int:
    """Run one service in this process, a child of the supervisor. Arguments: `NAME SETTINGS_FILE [NIC]`."""
    name, path, *nic = sys.argv[1:]
    return run(name, Path(path), nic[0] if nic else None)


if __name__ == "__main__":
    sys.exit(main())
