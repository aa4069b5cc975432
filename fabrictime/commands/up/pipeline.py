"""Runs the whole pipeline on this machine, from an empty directory to a live table.

Services run until Ctrl-C or the end of `--for`; the result is an exit code. The process enters the testbed's
namespaces before any thread starts, so heavy modules are imported later.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fabrictime.commands.options import INSTALL_SERVER, evidence_settings, print_state_directory
from fabrictime.commands.up.fleet import (
    make_fleet,
    make_secrets,
    print_line,
    settings_file,
    temporary_directory,
)
from fabrictime.commands.up.ports import with_ports
from fabrictime.commands.up.run import Run
from fabrictime.commands.up.services import children
from fabrictime.runtime import data_format, status
from fabrictime.runtime.config import Config, ConfigError, load
from fabrictime.runtime.supervisor import ChildFailed, Event, State, Supervisor
from schemas.input_error import InputError
from schemas.service_notifier import ServiceNotifier

if TYPE_CHECKING:
    from fabrictime.commands.up.console import RunConsole
    from fabrictime.state.evidence_reader import EvidenceWatch
    from fabrictime.state.live_figures import View
    from fabrictime.state.scorecard import Reading
    from producers.settings import NicSettings

PLAIN_EVERY_S: Final = 60.0 if "NOTIFY_SOCKET" in os.environ else 5.0
"""Pause between two lines of figures where the output is no terminal; the journal of systemd gets fewer."""

STATE_EVERY_S: Final = 1.0
STATE_RETRY_S: Final = 10.0
"""Pause after the state could not be written."""
GRACE_S: Final = 120.0
"""Time that `--for` waits beyond its end for late clocks and history, which run last on a full machine."""


def main(path: Path | None, overrides: Mapping[str, Any], *, for_s: float | None, as_json: bool) -> int:
    """Run until Ctrl-C, for `for_s` seconds or until a failure; return the exit code.

    Raises ConfigError, or ValueError if another process holds the directory or a port.
    """
    from fabrictime.runtime import fleet

    config = load(path, {"up": overrides})
    print_state_directory(config)
    simulated = fleet.sim_settings(config.up.fleet)
    if simulated is not None:
        config = config.replaced({"sim": simulated})
    config.check()
    _check_log(config)
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
            make_fleet(run, stack)
            make_secrets(run)
            temporary_directory(directory, fresh=True)
            return asyncio.run(_run(run))
    finally:
        if lock.is_locked:  # else another `up` has taken the directory, and its files
            shutil.rmtree(temporary_directory(directory), ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                (directory / status.STATE_FILE).unlink()
        lock.release()


def _check_log(config: Config) -> None:
    """Raise ValueError if [kafka] names another log than the log that `up` would start."""
    address = config.tables.get("kafka", {}).get("bootstrap")
    if config.up.log_url is None and address not in (None, config.bootstrap):
        raise InputError(
            f"{config.source}: kafka.bootstrap = {address}: expected up.log_url = {address!r} as well, "
            "or `up` starts a log of its own"
        )


def _check_packages(run: Run) -> None:
    """Raise ValueError if services of this run need packages that an agent's installation lacks."""
    up = run.config.up
    if not run.agent_only or up.log_url is None:
        needed = ["aiokafka", "faust"]
        needed += ["chdb"] if up.history_url is None else []
        needed += ["nicegui"] if up.web else []
        for package in needed:
            if importlib.util.find_spec(package) is None:
                raise InputError(
                    f"workers, log, history and page need the package {package}: {INSTALL_SERVER}"
                )


class _Seen(NamedTuple):
    """Sources of the live table and of the scorecard: supervisor, fleet view and evidence."""

    supervisor: Supervisor
    view: View | None
    """The fleet's figures; None if the run does not follow the fleet."""
    evidence: EvidenceWatch


async def _run(run: Run) -> int:
    from fabrictime.commands.up.console import RunConsole

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
        ServiceNotifier().notify("READY=1")
        if run.web_url is not None:
            console.print(f"web page: [bold]{run.web_url}[/bold]", highlight=False, soft_wrap=True)
        from fabrictime.state.evidence_reader import EvidenceWatch

        if run.follows_fleet:
            from fabrictime.state.live_figures import Watcher

            watcher = Watcher(run.config.kafka, run.config.kafka.registry())
            watcher.start()
        with (
            contextlib.closing(run.export(supervisor.snapshot)),
            EvidenceWatch(evidence_settings(run.config, run.config.kafka, run.own_shards)) as evidence,
        ):
            sources = _Seen(supervisor, None if watcher is None else watcher.view, evidence)
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
    """Start the child processes; return False if a signal came first. Raises ChildFailed."""
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
    """Refresh the live table (or print lines) and the state file until the run's end or a stop request."""
    from rich.live import Live

    from fabrictime.commands.up.live_table import plain, table

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
    """If the data directory was removed, lock it again, rewrite the services' files, and restart services.

    Raises ChildFailed if another `up` has locked the directory, OSError if it cannot be created.
    """
    if run.lock is None:
        return
    try:
        removed = run.lock.check()
    except status.InUse as error:
        raise ChildFailed("data directory", str(error), []) from None
    if removed is not None:
        console.print(removed, style="yellow", markup=False)
    if not settings_file(run).exists():  # perhaps a moment after the lock, as a removal takes its time
        make_secrets(run)
        temporary_directory(run.directory, fresh=True)
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
    """Print the scorecard of a run that reached the end of `--for`; return the exit code."""
    view = sources.view
    if run.for_s is None or view is None or stop.is_set():
        return _stopped_code(run, console)
    from fabrictime.state.scorecard import PARTS, dumped, lines

    grace_s = time.monotonic() + GRACE_S
    card = await _evaluated(run, sources, view)
    if not card["passed"]:
        late = ", ".join(part for part in PARTS if part in card and not card[part]["ok"])
        console.print(f"waiting up to {GRACE_S:.0f} s for {late}", highlight=False)
    while not card["passed"] and not stop.is_set() and time.monotonic() < grace_s:
        await asyncio.sleep(1)
        card = await _evaluated(run, sources, view)
    if run.as_json:
        print(dumped(card), flush=True)
    else:
        for line in lines(card):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print("passed" if card["passed"] else "FAILED", style="green" if card["passed"] else "red")
    return 0 if card["passed"] else 1


def _stopped_code(run: Run, console: RunConsole) -> int:
    """Return the exit code of a run that was stopped early: 1 if the output's reader has closed it."""
    if console.is_closed:
        return 1
    return 0 if run.for_s is None else 130


async def _evaluated(run: Run, sources: _Seen, view: View) -> dict[str, Any]:
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
        view,
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
