"""Chooses the processes that a run of `up` starts, each after its prerequisites."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from fabrictime.commands.up.fleet import print_line, settings_file, temporary_directory, workers_here
from fabrictime.commands.up.run import Run
from fabrictime.runtime.config import Config
from fabrictime.runtime.service import APART, shares_process
from fabrictime.runtime.supervisor import Child, Step
from schemas.run_module import module_command

if TYPE_CHECKING:
    from producers.settings import NicSettings

CONTROL_VARIABLE: Final = "FABRICTIME_CONTROL"
"""The variable that gives flow endpoints their actuator's control socket."""


def children(run: Run) -> list[Child | Step]:
    """Return the services to start, each after its prerequisites."""
    up = run.config.up
    settings = str(settings_file(run))

    def service(name: str, kind: str, needs: tuple[str, ...], *more: str) -> Child:
        argv = module_command("fabrictime.runtime.service", kind, settings, *more)
        env = {
            "TMPDIR": str(temporary_directory(run.directory)),
            CONTROL_VARIABLE: str(run.config.actuators.control_path),
            **run.metrics_environment(name, kind),
        }
        return Child(
            name,
            argv,
            needs,
            env,
            ready_timeout_s=up.start_timeout_s,
            stop_timeout_s=up.stop_timeout_s,
            essential=name == "log",
        )

    nodes: list[Child | Step] = []
    if up.log_url is None:
        nodes.append(service("log", "log", ()))  # makes the topics itself
    else:
        nodes.append(Step("log", partial(_make_topics, run.config)))
    own_history: tuple[str, ...] = ()
    if up.history_url is None and not run.agent_only:
        nodes.append(service("history", "history", ()))
        own_history = ("history",)
    if not run.agent_only:
        nodes += [service(name, kind, needs) for name, kind, needs in _stages(run, ("log", *own_history))]
    if run.simulated:
        # once all stages can read: a large fleet's messages would otherwise become a long backlog
        nodes.append(service("sim", "sim", ("log", *(node.name for node in nodes if node.name != "log"))))
    nodes += [service(name, kind, ("log",), *more) for name, kind, *more in _agents(run)]
    if _acts(run):
        nodes.append(Step("mode", partial(_set_mode, run), ("log",)))
        name = run.fleet if run.fleet in ("fabric", "sim") else run.nics[0].host
        if not (run.listed and shares_process(run.config.up.act)):
            nodes.append(service("act", "act", ("log",), name))
    if run.config.notify.receivers and not run.agent_only:
        nodes.append(service("notify", "notify", ("log",)))
    if run.config.actuators.nodes.scheduler != "none" and not run.agent_only:
        nodes.append(service("drains", "drains", ("log",)))
    if run.web_url is not None:
        nodes.append(service("web", "web", own_history))
    return nodes


def _stages(run: Run, after_history: tuple[str, ...]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (name, kind, prerequisites) of the workers and of the stages with processes of their own."""
    stages = set(run.config.streams.stages)
    apart = bool(stages - set(APART))
    workers = workers_here() if run.config.up.workers is None else run.config.up.workers
    for number in range(1, workers + 1):
        yield f"worker-{number}", "worker" if apart else "streams", ("log",) if apart else after_history
    if apart and workers:
        for stage in [stage for stage in APART if stage in stages]:
            yield stage, stage, after_history if stage == "sink" else ("log",)


def _agents(run: Run) -> Iterator[tuple[str, ...]]:
    """Yield (name, kind, argument) of the services that probe from this machine's NICs."""
    agents = [] if run.simulated else run.nics
    for nic in _probed_by_verbs(run, agents):
        name = f"{nic.host}/{nic.device}"
        yield f"rdma-probe {name}", "rdma-probe", name
    if run.listed and agents:  # one host: all parts share a process
        yield f"agent {agents[0].host}", "agent"
        return
    for nic in agents:
        name = f"{nic.host}/{nic.device}"
        yield f"prober {name}", "prober", name
    if agents:
        yield "flows", "flows"
        yield "collectives", "collectives"
        yield "auditor", "auditor"
    if run.config.up.clock_pages and agents:
        yield "clock", "actuator"


def _probed_by_verbs(run: Run, nics: list[NicSettings]) -> list[NicSettings]:
    """Return the NICs with RDMA probes; report each NIC whose device is not used, with the reason."""
    if run.fleet in ("none", "loopback", "fabric"):
        return []
    from producers.probe.rdma.devices import rdma_device_of, rdma_unavailable

    probed_nics = []
    for nic in nics:
        if rdma_device_of(nic) is None:
            continue
        reason = rdma_unavailable(run.config.rdma_probes, nic)
        if reason is None:
            probed_nics.append(nic)
        else:
            print_line(reason)
    return probed_nics


def _acts(run: Run) -> bool:
    """Return whether this machine has flows on which an actuator could act."""
    return run.config.up.act != "off" and bool(run.nics) and run.fleet != "loopback"


async def _set_mode(run: Run) -> None:
    """Set mode ACT on `fabric.config` unless the topic already sets a mode."""
    mode = run.config.up.act
    if mode == "act" or (mode == "auto" and run.fleet in ("fabric", "sim")):
        from fabrictime.commands.config import live_config

        kafka = run.config.kafka
        await asyncio.to_thread(
            live_config.begin_acting,
            kafka,
            kafka.registry(),
            run.config.control,
            on_own_fabric=run.fleet in ("fabric", "sim"),
        )


async def _make_topics(config: Config) -> None:
    from fabrictime.runtime import topics_admin

    await asyncio.to_thread(topics_admin.create, config.kafka, config)
