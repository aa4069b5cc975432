"""Runs the whole pipeline on this machine, from an empty directory to a live table.

Services run until Ctrl-C or the end of `--for`; the result is an exit code. The process enters the fabric's
namespaces before any thread starts, so heavy modules are imported later.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import math
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fabrictime.commands.options import INSTALL_SERVER, evidence_settings, print_state_directory
from fabrictime.commands.up_ports import with_ports
from fabrictime.commands.up_run import Run
from fabrictime.runtime import data_format, status
from fabrictime.runtime.config import Config, ConfigError, load
from fabrictime.runtime.processors import usable_processors
from fabrictime.runtime.service import APART
from fabrictime.runtime.supervisor import Child, ChildFailed, Event, State, Step, Supervisor
from fabrictime.testbed.scheduling_priority import keep_priority, raise_session
from schemas.run_module import module_command

if TYPE_CHECKING:
    from fabrictime.commands.run_console import RunConsole
    from fabrictime.state.evidence_reader import EvidenceWatch
    from fabrictime.state.live_figures import View
    from fabrictime.state.scorecard import Reading
    from producers.settings import NicSettings
    from schemas.topology import TopologyFile

PLAIN_EVERY_S: Final = 5.0
"""Pause between two lines of figures where the output is no terminal."""

STATE_EVERY_S: Final = 1.0
STATE_RETRY_S: Final = 10.0
"""Pause after the state could not be written."""
GRACE_S: Final = 120.0
"""Time that `--for` waits beyond its end for late clocks and history, which run behind other services on a
full machine."""

CONTROL_VARIABLE: Final = "FABRICTIME_CONTROL"
"""The variable that gives flow endpoints their actuator's control socket."""
_KEY_BYTES: Final = 32
FABRIC_PPS_PER_CPU: Final = 1200.0
MIN_PPS: Final = 50.0
FLOWS_SHARE: Final = 0.5
"""Probe rates on a fabric of this machine, probes/s: of all NICs together, the minimum per NIC, and the
additional flow probes per NIC."""
FEW_CPUS: Final = 2
FEW_CPUS_FLUSH_MS: Final = 100
"""Between two batches of a NIC of a fabric on so few processors, which all agents and the workers share."""


def main(path: Path | None, overrides: Mapping[str, Any], *, for_s: float | None, as_json: bool) -> int:
    """Run until Ctrl-C, `for_s` or a failure; return the exit code.

    Raises ConfigError, or ValueError where another process holds the directory or a port.
    """
    from fabrictime.runtime import fleet

    config = load(path, {"up": overrides})
    print_state_directory(config)
    simulated = fleet.sim_settings(config.up.fleet)
    if simulated is not None:
        config = config.replaced({"sim": simulated})
    config.check()
    listed: list[NicSettings] = []
    if simulated is None and config.up.fleet not in fleet.KINDS:
        listed = fleet.file_nics(Path(config.up.fleet), fleet.host_name(config))
    directory = config.up.data_directory.absolute()
    lock = status.Lock(directory)
    try:
        run = Run(with_ports(config), directory, for_s, as_json, listed=bool(listed), nics=listed, lock=lock)
        _check_packages(run)
        if line := data_format.set_aside(run.data_folders):
            print_line(line)
        with contextlib.ExitStack() as stack:
            _make_fleet(run, stack)
            _make_secrets(run)
            _temporary(directory, fresh=True)
            return asyncio.run(_run(run))
    finally:
        if lock.is_locked:  # else another `up` has taken the directory, and its files
            shutil.rmtree(_temporary(directory), ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                (directory / status.STATE_FILE).unlink()
        lock.release()


def _check_packages(run: Run) -> None:
    """Raise ValueError if services of this run need packages that an agent's installation lacks."""
    up = run.config.up
    if not run.agent_only or up.log_url is None:
        needed = ["aiokafka", "faust"]
        needed += ["chdb"] if up.history_url is None else []
        needed += ["nicegui"] if up.web else []
        for package in needed:
            if importlib.util.find_spec(package) is None:
                raise ValueError(
                    f"workers, log, history and page need the package {package}: {INSTALL_SERVER}"
                )


def print_line(line: str) -> None:
    """Print a line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def _make_fleet(run: Run, stack: contextlib.ExitStack) -> None:
    """Find the NICs; for the fabric, enter the namespaces and build it."""
    kind = run.config.up.fleet
    if kind == "fabric":
        from fabrictime.testbed import userns

        restore, restore_session = keep_priority(), raise_session()
        stack.callback(restore_session)
        try:
            userns.enter()
        except userns.NamespacesDenied as denied:
            restore()
            restore_session()
            print_line(f"no fabric here: {denied}; probing between loopback addresses instead")
            kind = "loopback"
        else:
            from fabrictime.testbed.control import Testbed, socket_path

            began_s = time.monotonic()
            testbed = Testbed(run.config.fabric, socket_path(run.directory), run.config.flows.socket)
            run.fabric = stack.enter_context(testbed).fabric
            testbed.reported_moves.append(partial(_write_topology, run))
            shape = run.config.fabric
            print_line(
                f"fabric ready, {shape.hosts} hosts, {shape.leaves} leaves and {shape.spines} spines, "
                f"{time.monotonic() - began_s:.1f} s"
            )
    from fabrictime.runtime import fleet

    if run.fabric is not None:
        run.nics = fleet.fabric_nics(run.fabric)
    elif kind == "loopback":
        run.nics = fleet.loopback_nics(run.config.up.loopback_nics)
    elif fleet.sim_settings(kind) is not None:
        kind = fleet.SIM
        # from here on, so that the clocks are known here too
        run.config = run.config.replaced({"sim": {"clock_epoch_ns": time.time_ns()}})
        run.nics = fleet.sim_nics(run.config.sim)
        print_line(f"simulated fleet of {len(run.nics)} NICs; faults: fabrictime sim fault")
    elif kind != "none":
        run.nics = run.nics or fleet.file_nics(Path(kind), fleet.host_name(run.config))
    run.nics = fleet.with_clocks(run.nics, run.config.up.clocks)
    run.fleet = kind


def _make_secrets(run: Run) -> None:
    """Create the probe key if it is missing and local, and write the children's settings."""
    from fabrictime.runtime.fleet import local_fleet, write_nics

    key = run.config.probes.key_file
    if key.parent == run.directory / "secrets" and not key.exists():
        with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_hex(_KEY_BYTES).encode())
    nics = local_fleet(run.config)
    write_nics(nics, run.nics)
    changes: dict[str, dict[str, Any]] = {"up": {"fleet": str(nics)}}
    probes: dict[str, Any] = {}
    if run.config.probes.topology_file is None and (run.fabric is not None or run.simulated):
        probes["topology_file"] = str(_write_topology(run))
    if run.fabric is not None:
        given_keys, carried_pps = run.config.tables.get("probes", {}), _rate_for(len(run.nics))
        if "rate_pps" not in given_keys:
            probes["rate_pps"] = carried_pps
        if "flow_pps" not in given_keys:
            probes["flow_pps"] = min(run.config.probes.flow_pps, carried_pps * FLOWS_SHARE)
        if "flush_ms" not in given_keys and usable_processors() <= FEW_CPUS:
            probes["flush_ms"] = FEW_CPUS_FLUSH_MS
    if probes:
        changes["probes"] = probes
    run.config = run.config.replaced(changes)
    _settings_file(run).write_text(run.config.dump(), encoding="utf-8")


def _workers_here() -> int:
    """Return how many workers share this machine well with all else: a second one that finds no processor
    free takes a third of one for nothing."""
    return 1 if usable_processors() <= FEW_CPUS else 2


def _rate_for(nics: int) -> float:
    """Return the requests a second of each NIC of a fabric that this machine carries beside everything else:
    a probe costs it every hop there and back, not one host's work."""
    from producers.settings import ProbeSettings

    cpus = usable_processors()

    default: float = ProbeSettings.model_fields["rate_pps"].default
    return max(MIN_PPS, min(default, cpus * FABRIC_PPS_PER_CPU / nics))


def _write_topology(run: Run) -> Path:
    """Write names, cables and rates of the fabric, as an operator's topology file."""
    path = run.directory / "run" / "topology.json"
    topology = _topology_of(run)
    if topology is not None:
        new = path.with_suffix(".new")
        new.write_text(topology.model_dump_json(), encoding="utf-8")
        new.replace(path)  # a reader sees the old file or the new one
    return path


def _topology_of(run: Run) -> TopologyFile | None:
    """Return the description of a fabric made here, else None."""
    if run.fabric is not None:
        from fabrictime.testbed.topology import topology_file

        return topology_file(run.fabric.plan)
    if run.simulated:
        from producers.sim import setup as sim

        return sim.topology_file(sim.fleet_of(run.config.sim))
    return None


def _temporary(directory: Path, *, fresh: bool = False) -> Path:
    """Directory for files that live as long as the children; a killed child leaves them behind."""
    path = directory / "run" / "tmp"
    if fresh:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
    return path


def _settings_file(run: Run) -> Path:
    return run.directory / "run" / "settings.json"


def children(run: Run) -> list[Child | Step]:
    """Return the services to start, each after its prerequisites."""
    up = run.config.up
    settings = str(_settings_file(run))

    def service(name: str, kind: str, needs: tuple[str, ...], *more: str) -> Child:
        argv = module_command("fabrictime.runtime.service", kind, settings, *more)
        env = {
            "TMPDIR": str(_temporary(run.directory)),
            CONTROL_VARIABLE: str(run.config.actuators.control_path),
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
        nodes.append(service("act", "act", ("log",), name))
    if run.web_url is not None:
        nodes.append(service("web", "web", own_history))
    return nodes


def _stages(run: Run, after_history: tuple[str, ...]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield name, kind and prerequisites of the workers and of the stages with processes of their own."""
    stages = set(run.config.streams.stages)
    apart = bool(stages - set(APART))
    workers = _workers_here() if run.config.up.workers is None else run.config.up.workers
    for number in range(1, workers + 1):
        yield f"worker-{number}", "worker" if apart else "streams", ("log",) if apart else after_history
    if apart and workers:
        for stage in [stage for stage in APART if stage in stages]:
            yield stage, stage, after_history if stage == "sink" else ("log",)


def _agents(run: Run) -> Iterator[tuple[str, ...]]:
    """Yield name, kind and argument of the services that probe from this machine's NICs."""
    agents = [] if run.simulated else run.nics
    for nic in agents:
        name = f"{nic.host}/{nic.device}"
        yield f"prober {name}", "prober", name
    for nic in _probed_by_verbs(run, agents):
        name = f"{nic.host}/{nic.device}"
        yield f"rdma-probe {name}", "rdma-probe", name
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
    from producers.probe.rdma.service import rdma_device_of, rdma_unavailable

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
    """Whether there are flows that an actuator could act on."""
    return run.config.up.act != "off" and bool(run.nics) and run.fleet != "loopback"


async def _set_mode(run: Run) -> None:
    """Enable actions on `fabric.config` unless a mode is set there."""
    mode = run.config.up.act
    if mode == "act" or (mode == "auto" and run.fleet in ("fabric", "sim")):
        from fabrictime.commands import live_config

        kafka = run.config.kafka
        await asyncio.to_thread(
            live_config.begin_acting, kafka, kafka.registry(), on_own_fabric=run.fleet in ("fabric", "sim")
        )


async def _make_topics(config: Config) -> None:
    from fabrictime.runtime import topics_admin

    await asyncio.to_thread(topics_admin.create, config.kafka, config)


class _Seen(NamedTuple):
    """Sources of the live table and of the scorecard."""

    supervisor: Supervisor
    view: View
    evidence: EvidenceWatch


async def _run(run: Run) -> int:
    from fabrictime.commands.run_console import RunConsole

    stop = asyncio.Event()
    console = RunConsole(stop, sys.stderr if run.as_json else sys.stdout)
    supervisor = Supervisor(run.directory / "run", partial(_announce, console))
    supervisor.add(*children(run))
    _on_signals(stop, supervisor)
    began_s = time.monotonic()
    watcher: Watcher | None = None
    try:
        if not await _started(supervisor, stop):
            return _stopped_code(run, console)
        faults = supervisor.faults
        left = f"all ready but {', '.join(faults)}" if faults else "all ready"
        console.print(f"{left} after {time.monotonic() - began_s:.1f} s", highlight=False)
        if run.web_url is not None:
            console.print(f"web page: [bold]{run.web_url}[/bold]", highlight=False, soft_wrap=True)
        from fabrictime.state.evidence_reader import EvidenceWatch
        from fabrictime.state.live_figures import Watcher

        watcher = Watcher(run.config.kafka, run.config.kafka.registry())
        watcher.start()
        with EvidenceWatch(evidence_settings(run.config, run.config.kafka)) as evidence:
            sources = _Seen(supervisor, watcher.view, evidence)
            await _show_until(run, console, sources, stop)
            return await _finish(run, console, sources, stop)
    except ChildFailed as failure:
        _explain(console, supervisor, failure)
        return 1
    finally:
        if watcher is not None:
            watcher.stop()
        await supervisor.stop()
        if not run.as_json:
            console.print("stopped", highlight=False)


async def _started(supervisor: Supervisor, stop: asyncio.Event) -> bool:
    """Start the children; return False where a signal came first. Raises ChildFailed."""
    starting = asyncio.create_task(supervisor.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        return False
    starting.result()
    return True


def _on_signals(stop: asyncio.Event, supervisor: Supervisor) -> None:
    loop = asyncio.get_running_loop()

    def asked(number: signal.Signals) -> None:
        if stop.is_set() and number != signal.SIGHUP:  # a closed terminal hangs up twice: shell and kernel
            supervisor.kill()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked, number)


def _announce(console: Any, event: Event) -> None:
    if event.state is State.READY and event.text and not event.is_fault:
        console.print(f"{event.name} ready, {event.text}", highlight=False, markup=False)
    elif event.is_fault or event.state is State.FAILED:
        console.print(f"{event.name}: {event.text}", style="yellow", highlight=False, markup=False)


def _explain(console: Any, supervisor: Supervisor, failure: ChildFailed) -> None:
    for line in failure.tail:
        print_line(f"  {line}")
    print_line(f"fabrictime: {failure} (all of its output: {supervisor.log_path(failure.name)})")


async def _show_until(run: Run, console: Any, sources: _Seen, stop: asyncio.Event) -> None:
    """Keep the live table (or lines) and the state file fresh until it is time to end."""
    from rich.live import Live

    from fabrictime.commands.live_table import plain, table

    end_s = None if run.for_s is None else time.monotonic() + run.for_s
    refresh_s = run.config.up.table_refresh_ms / 1000
    next_line_s = time.monotonic() + PLAIN_EVERY_S
    next_state_s = 0.0
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    with live if live is not None else contextlib.nullcontext():
        while not stop.is_set() and (end_s is None or time.monotonic() < end_s):
            now_s = time.monotonic()
            rows, missing = sources.supervisor.snapshot(), sources.evidence.verdict().missing
            if now_s >= next_state_s:
                next_state_s = now_s + STATE_EVERY_S
                try:
                    _check_directory(run, console, sources.supervisor)
                    status.write(run.directory, _state(run, rows, missing))
                except OSError as error:  # a full disk ends no service
                    console.print(f"state for `fabrictime status`: {error}", style="yellow", markup=False)
                    next_state_s = now_s + STATE_RETRY_S
            if live is not None:
                picture = table(sources.view, rows, run.web_url, console.size.height, missing)
                live.update(picture, refresh=True)
            elif now_s >= next_line_s:
                console.print(plain(sources.view, rows, missing), highlight=False, soft_wrap=True)
                next_line_s = now_s + PLAIN_EVERY_S
            wake_s = now_s + refresh_s if live is not None else min(next_state_s, next_line_s)
            pause_s = max(0.0, min(wake_s, math.inf if end_s is None else end_s) - time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s)


def _check_directory(run: Run, console: Any, supervisor: Supervisor) -> None:
    """Take a data directory again that was removed, with the files that the services read, and restart them.

    Raises ChildFailed if another `up` has taken it. Raises OSError if it cannot be made.
    """
    if run.lock is None:
        return
    try:
        removed = run.lock.check()
    except status.InUse as error:
        raise ChildFailed("data directory", str(error), []) from None
    if removed is not None:
        console.print(removed, style="yellow", markup=False)
    if not _settings_file(run).exists():  # perhaps a moment after the lock, as a removal takes its time
        _make_secrets(run)
        _temporary(run.directory, fresh=True)
        supervisor.restart_all()


def _state(run: Run, rows: list[dict[str, Any]], missing: Sequence[str]) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "fleet": run.fleet,
        "directory": str(run.directory),
        "started_s": run.started_s,
        "started_boot_s": run.started_boot_s,
        "addresses": run.addresses(),
        "nics": [f"{nic.host}/{nic.device}" for nic in run.nics],
        "children": rows,
        "missing_evidence": list(missing),
    }


async def _finish(run: Run, console: RunConsole, sources: _Seen, stop: asyncio.Event) -> int:
    """Judge a run that had an end; a run that was stopped by hand has none."""
    if run.for_s is None or stop.is_set():
        return _stopped_code(run, console)
    from fabrictime.state.scorecard import PARTS, dumped, lines

    grace_s = time.monotonic() + GRACE_S
    card = await _evaluated(run, sources)
    if not card["passed"]:
        late = ", ".join(part for part in PARTS if part in card and not card[part]["ok"])
        console.print(f"waiting up to {GRACE_S:.0f} s for {late}", highlight=False)
    while not card["passed"] and not stop.is_set() and time.monotonic() < grace_s:
        await asyncio.sleep(1)
        card = await _evaluated(run, sources)
    if run.as_json:
        print(dumped(card), flush=True)
    else:
        for line in lines(card):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print("passed" if card["passed"] else "FAILED", style="green" if card["passed"] else "red")
    return 0 if card["passed"] else 1


def _stopped_code(run: Run, console: RunConsole) -> int:
    """Return the exit code of a run that ended early: 1 if the reader of its output is gone."""
    if console.is_closed:
        return 1
    return 0 if run.for_s is None else 130


async def _evaluated(run: Run, sources: _Seen) -> dict[str, Any]:
    from fabrictime.state.scorecard import ask_history, ask_web, evaluate

    web = None if run.web_url is None else await asyncio.to_thread(ask_web, run.web_url)
    config = run.config
    history = None
    if run.has_history:
        history = await asyncio.to_thread(
            ask_history, config.history_url, str(config.web.history_user), config.history_secret("read")
        )
    names = [f"{nic.host}/{nic.device}" for nic in run.nics]
    faults, log_fault = sources.supervisor.faults, sources.evidence.verdict().log_fault
    verdict = evaluate(
        sources.view,
        names,
        time.monotonic(),
        readings=_readings(run),
        history=history,
        web=web,
        faults=faults if log_fault is None else {"log": log_fault, **faults},
    )
    passed = verdict.pop("passed")
    return {"passed": passed, "for_s": run.for_s, "fleet": run.fleet, **verdict}


def _readings(run: Run) -> dict[str, Reading] | None:
    """Return the readings of the NICs' test clocks, from the truth recorder."""
    if not run.truth_known:
        return None
    from native.core.probe import TestClock

    def reading(nic: NicSettings) -> Callable[[int], int]:
        return lambda now_ns: (
            now_ns if nic.clock is None else TestClock(**nic.clock.model_dump()).reading(now_ns)
        )

    return {f"{nic.host}/{nic.device}": reading(nic) for nic in run.nics}


__all__ = ["ConfigError", "Run", "children", "json", "main"]
