"""Implements `fabrictime fabric`: builds a testbed, and loads, breaks and inspects a running one.

Output is tables for people, or JSON with --json. All commands but `up` connect to the testbed's owner (this
`up`, or `fabrictime up`) over the socket in its data directory.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from fabrictime.commands.options import ConfigFile, DataDir, Json
from fabrictime.runtime.config import ConfigError, load
from fabrictime.testbed.control import ControlClient, NoFabric, Testbed, socket_path
from fabrictime.testbed.fabric.fabric import FabricError
from fabrictime.testbed.fabric.faults import parse_duration
from fabrictime.testbed.jobs.jobs import parse_size
from fabrictime.testbed.jobs.mpi import NoMpi, mpi_command
from fabrictime.testbed.jobs.traffic import parse_rate
from fabrictime.testbed.processes.scheduling_priority import apply_priority
from fabrictime.testbed.processes.userns import NamespacesDenied, enter
from fabrictime.testbed.settings import FabricSettings

app = typer.Typer(no_args_is_help=True, help="A leaf-spine fabric of real packets on this machine.")


_FLOW_START_S = 15.0
_JOB_START_S = 45.0


class JobName(StrEnum):
    """The traffic patterns that `fabric job` can run."""

    alltoall = "alltoall"
    allreduce = "allreduce"
    incast = "incast"
    rpc = "rpc"


@app.command()
def up(
    hosts: Annotated[int | None, typer.Option(help="hosts")] = None,
    leaves: Annotated[int | None, typer.Option(help="leaf switches")] = None,
    spines: Annotated[int | None, typer.Option(help="spine switches")] = None,
    rate: Annotated[
        str | None, typer.Option(help="rate of every link, as in 100mbit; 0: not limited")
    ] = None,
    duration: Annotated[str | None, typer.Option("--for", help="end by itself, as in 30s")] = None,
    config: ConfigFile = None,
    directory: DataDir = None,
) -> None:
    """Build a testbed from the settings or these options, and run it until Ctrl-C."""
    with _clear_errors():
        limit_s = None if duration is None else parse_duration(duration)
        bps = None if rate is None else parse_rate(rate)
        options: dict[str, Any] = {
            "hosts": hosts,
            "leaves": leaves,
            "spines": spines,
            "host_rate_bps": bps,
            "fabric_rate_bps": bps,
        }
        base = load(config).fabric.model_dump()
        settings = FabricSettings(
            **base | {key: value for key, value in options.items() if value is not None}
        )
        path = _path(directory, config)
        enter()
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        begin = time.monotonic()
        with Testbed(settings, path) as testbed:
            console = Console()
            console.print(_tree(testbed))
            console.print(f"up in {time.monotonic() - begin:.2f} s, process {os.getpid()}; Ctrl-C ends it")
            ended.wait(limit_s)


@app.command()
def show(directory: DataDir = None, as_json: Json = False) -> None:
    """Show the running fabric: its NICs, faults and flows."""
    with _clear_errors():
        state = ControlClient(_path(directory)).ask("show")
        if as_json:
            print(json.dumps(state))
            return
        console = Console()
        table = Table("NIC", "address", "leaf", "rack", "rail", "namespace", title=f"fabric {state['name']}")
        for nic in state["nics"]:
            rail = "" if nic["rail"] is None else str(nic["rail"])
            table.add_row(
                nic["nic"],
                nic["address"],
                f"{nic['leaf']}:{nic['leaf_port']}",
                nic["rack"],
                rail,
                nic["netns"],
            )
        console.print(table)
        for event in state["faults"]:
            console.print(
                f"fault {event['fault']}: {event['text']}  ({', '.join(event['links'])})", markup=False
            )
        for flow in state["flows"]:
            console.print(
                f"flow {flow['flow']}: {flow['protocol']} {flow['source']}:{flow['sport']} > "
                f"{flow['destination']}:{flow['dport']} {flow['rate_bps'] / 1e6:g} Mbit/s",
                markup=False,
            )


@app.command()
def fault(
    line: Annotated[
        str,
        typer.Argument(
            help="'down TARGET' (taken down), 'blackhole TARGET' (loses all, looks up), 'grey P% TARGET' "
            "(loses a share), 'mtu BYTES TARGET' (loses all packets above a size) or 'remark A B TARGET' "
            "(changes DSCP A to B); 'dscp N' after the TARGET of blackhole or grey: that class only; "
            "TARGET: a link such as leaf1>spine2, a NIC or a switch",
            show_default=False,
        ),
    ],
    duration: Annotated[str | None, typer.Option("--for", help="heal by itself, as in 10s")] = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Break a part of the running fabric."""
    with _clear_errors():
        text = line if duration is None else f"{line} for {duration}"
        event = ControlClient(_path(directory)).ask("fault", line=text)
        if as_json:
            print(json.dumps(event))
        else:
            _plain(f"fault {event['fault']}: {event['text']}; loses packets on {', '.join(event['links'])}")


@app.command()
def clear(
    which: Annotated[str | None, typer.Argument(help="number or line of a fault; all without")] = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Heal one fault, or all faults."""
    with _clear_errors():
        events = ControlClient(_path(directory)).ask("clear", fault=which)
        if as_json:
            print(json.dumps(events))
            return
        for event in events:
            active_s = (event["clear_end_ns"] - event["start_begin_ns"]) / 1e9
            _plain(f"fault {event['fault']} cleared after {active_s:.1f} s: {event['text']}")
        if not events:
            _plain("no fault in force")


@app.command()
def flow(
    source: Annotated[str, typer.Argument(help="host or NIC that sends")],
    destination: Annotated[str, typer.Argument(help="host or NIC that receives")],
    rate: Annotated[str, typer.Option(help="as in 70mbit; 0 with --tcp: as fast as it goes")] = "70mbit",
    duration: Annotated[str, typer.Option("--for", help="as in 10s")] = "10s",
    tcp: Annotated[bool, typer.Option("--tcp", help="TCP, else UDP")] = False,
    sport: Annotated[int, typer.Option(help="source port, which chooses the path; 0: any")] = 0,
    dport: Annotated[int, typer.Option(help="destination port; 0: any")] = 0,
    congestion: Annotated[str, typer.Option(help="TCP's congestion control")] = "cubic",
    dscp: Annotated[int, typer.Option(help="DSCP of its packets, which chooses the traffic class")] = 0,
    job: Annotated[str | None, typer.Option(help="job that the flow report names")] = None,
    tenant: Annotated[str | None, typer.Option(help="tenant that the flow report names")] = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Send a bulk flow across the running fabric and print the received amount."""
    with _clear_errors():
        duration_s = parse_duration(duration)
        answers = ControlClient(_path(directory)).stream(
            "flow",
            duration_s + _FLOW_START_S,
            source=source,
            destination=destination,
            rate_bps=parse_rate(rate),
            duration_s=duration_s,
            protocol="tcp" if tcp else "udp",
            sport=sport,
            dport=dport,
            congestion=congestion,
            dscp=dscp,
            job=job,
            tenant=tenant,
        )
        started = next(answers)
        if not as_json:
            path = started["path"] or [started["why"]]
            _plain(
                f"flow {started['flow']} from port {started['sport']} to {started['dport']}: {' '.join(path)}"
            )
        result = next(answers)
        if as_json:
            print(json.dumps(result | {"path": started["path"]}))
            return
        lost = "" if result["loss"] is None else f", {result['loss'] * 100:.2f} % lost"
        resent = "" if result["retransmits"] is None else f", {result['retransmits']} retransmits"
        _plain(
            f"{result['goodput_bps'] / 1e6:.2f} Mbit/s of payload in {result['elapsed_s']:.1f} s"
            f"{lost}{resent}"
        )


@app.command()
def job(
    kind: Annotated[JobName, typer.Argument(help="traffic pattern", show_default=False)],
    hosts: Annotated[
        str | None,
        typer.Option(help="ranks in order, as in h1,h2,h5; incast: the first one receives; all without"),
    ] = None,
    connections: Annotated[int, typer.Option(help="connections of each pair")] = 4,
    size: Annotated[
        str, typer.Option(help="input of a rank per iteration (incast, rpc: payload of a connection)")
    ] = "2mb",
    duration: Annotated[str, typer.Option("--for", help="as in 20s")] = "20s",
    iterations: Annotated[int, typer.Option(help="end after so many; 0: at its time")] = 0,
    gap: Annotated[str, typer.Option(help="pause between iterations, as in 10ms")] = "0s",
    seed: Annotated[int, typer.Option(help="seed of the source ports, which choose the paths")] = 0,
    congestion: Annotated[str, typer.Option(help="TCP's congestion control")] = "cubic",
    dscp: Annotated[int, typer.Option(help="DSCP of its packets, which chooses the traffic class")] = 0,
    name: Annotated[str | None, typer.Option("--job", help="job that the flow reports name")] = None,
    tenant: Annotated[str | None, typer.Option(help="tenant that the flow reports name")] = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a job's traffic on the running fabric; the slowest connection of a step holds up the next."""
    with _clear_errors():
        duration_s = parse_duration(duration)
        gap_s = 0.0 if gap in ("0", "0s") else parse_duration(gap)
        answers = ControlClient(_path(directory)).stream(
            "job",
            duration_s + _JOB_START_S,
            kind=kind.value,
            hosts=hosts.split(",") if hosts else [],
            connections=connections,
            size_bytes=parse_size(size),
            duration_s=duration_s,
            iterations=iterations,
            gap_s=gap_s,
            seed=seed,
            congestion=congestion,
            dscp=dscp,
            job=name,
            tenant=tenant,
        )
        started = next(answers)
        connected = started["connections"]
        if not as_json:
            best = started["best_goodput_bps"]
            at_best = "" if best is None else f"; alone at best {best / 1e6:.1f} Mbit/s"
            _plain(
                f"job {started['job']}: {kind.value} of {len(started['hosts'])} hosts over {len(connected)} "
                f"connections, {started['iteration_bytes'] / 1e6:g} MB an iteration{at_best}"
            )
        by_number = {one["number"]: one for one in connected}
        times: list[dict[str, Any]] = []
        for answer in answers:
            if "ended" in answer:
                break
            times += answer["iterations"]
            if not as_json and answer["iterations"]:
                _plain(_progress(answer["iterations"], started["iteration_bytes"], by_number))
        else:
            raise FabricError("the job ended without a result")
        if as_json:
            print(json.dumps(started | answer | {"iterations": times}))
            return
        best = answer["best_goodput_bps"]
        share = "" if not best else f", {answer['goodput_bps'] / best * 100:.0f} % of the best"
        _plain(
            f"{answer['iterations']} iterations in {answer['elapsed_s']:.1f} s: "
            f"{answer['goodput_bps'] / 1e6:.1f} Mbit/s of payload{share}; {len(answer['moves'])} moves, "
            f"{answer['retransmits']} retransmits"
        )


@app.command(context_settings={"ignore_unknown_options": True})
def mpi(
    program: Annotated[list[str], typer.Argument(help="program and its arguments, after --")],
    hosts: Annotated[str, typer.Option(help="ranks in order, as in h1,h2,h5")],
    name: Annotated[str | None, typer.Option("--job", help="name of the job")] = None,
    tenant: Annotated[str | None, typer.Option(help="tenant of the job")] = None,
    connections: Annotated[int, typer.Option(min=1, max=64, help="connections of each pair")] = 1,
    port: Annotated[int, typer.Option(min=1024, max=65_000, help="first port of listening ranks")] = 1024,
    congestion: Annotated[str, typer.Option(help="TCP's congestion control")] = "cubic",
    profiled: Annotated[bool, typer.Option(help="load the profiler of MPI programs")] = True,
    directory: DataDir = None,
) -> None:
    """Run an MPI program on hosts of the running fabric, one rank each, with the profiler loaded."""
    with _clear_errors():
        socket = _path(directory)
        command = mpi_command(
            ControlClient(socket).ask("show"),
            socket.parent,
            hosts.split(","),
            program,
            job=name or f"mpi-{os.getpid()}",
            tenant=tenant,
            connections=connections,
            port=port,
            congestion=congestion,
            profiled=profiled,
        )
        apply_priority("job")  # before the namespaces, in which it is not allowed
        os.execvp(command[0], command)  # noqa: S606  # no shell is meant


@app.command()
def truth(directory: DataDir = None, as_json: Json = False) -> None:
    """Show the truth: counters and queue of every link, the faults, the clocks."""
    with _clear_errors():
        state = ControlClient(_path(directory)).ask("truth")
        if as_json:
            print(json.dumps(state))
            return
        console = Console()
        table = Table(box=None)
        for title in ("link", "packets sent", "received", "MB", "queued B", "dropped", "marked"):
            table.add_column(title, justify="left" if title == "link" else "right", no_wrap=True)
        for link, now in state["links"].items():
            table.add_row(
                link,
                f"{now['sent_packets']}",
                f"{now['received_packets']}",
                f"{now['received_bytes'] / 1e6:.1f}",
                f"{now['backlog_bytes']}",
                f"{now['dropped_packets']}",
                f"{sum(state['marked'].get(link, {}).values())}",
            )
        console.print(table)
        for event in state["faults"]:
            ended = "in force" if event["clear_end_ns"] is None else "cleared"
            _plain(f"fault {event['fault']}: {event['text']} ({ended})")
        for nic, clock in state["clocks"].items():
            if clock is not None:
                _plain(f"clock {nic}: {_wrong(clock['offset_ns'], clock['drift_ppb'])}")


@app.command()
def path(
    source: Annotated[str, typer.Argument(help="host or NIC that sends")],
    destination: Annotated[str, typer.Argument(help="host or NIC that receives")],
    sport: Annotated[int, typer.Option(help="source port")],
    dport: Annotated[int, typer.Option(help="destination port")],
    tcp: Annotated[bool, typer.Option("--tcp", help="TCP, else UDP")] = False,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the links that a 5-tuple takes, proven by a burst and the links' counters."""
    with _clear_errors():
        links = ControlClient(_path(directory)).ask(
            "path",
            source=source,
            destination=destination,
            sport=sport,
            dport=dport,
            protocol="tcp" if tcp else "udp",
        )
        if as_json:
            print(json.dumps(links))
        else:
            _plain("\n".join(links))


@app.command()
def move(
    spine: Annotated[str, typer.Argument(help="spine that is moved")],
    other: Annotated[str, typer.Argument(help="spine that it changes places with")],
    leaf: Annotated[list[str] | None, typer.Option(help="at this leaf only; may be repeated")] = None,
    miswire: Annotated[
        bool, typer.Option("--miswire", help="Leave the topology file as it is: the cables contradict it.")
    ] = False,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Exchange two spines while everything runs: their cables change places at all leaves, or at some."""
    with _clear_errors():
        links = ControlClient(_path(directory)).ask(
            "move", spine=spine, other=other, leaves=leaf or [], miswire=miswire
        )
        if as_json:
            print(json.dumps(links))
        else:
            _plain("\n".join(links))


def _progress(times: list[dict[str, Any]], size: int, by_number: dict[int, dict[str, Any]]) -> str:
    """Return one line about the iterations of a job that ended since the last call."""
    took_s = [(one["end_ns"] - one["begin_ns"]) / 1e9 for one in times]
    worst = max(times, key=lambda one: one["slowest_ns"])
    slowest = by_number.get(worst["slowest"], by_number.get(worst["slowest"] - 1, {}))
    return (
        f"iteration {times[-1]['number'] + 1}: {sum(took_s) / len(took_s) * 1e3:.1f} ms, "
        f"{size * 8 * len(times) / sum(took_s) / 1e6:.1f} Mbit/s; slowest {slowest.get('source')} to "
        f"{slowest.get('destination')} from port {slowest.get('source_port')}, "
        f"{worst['slowest_ns'] / 1e6:.1f} ms"
    )


def _path(directory: Path | None, config: Path | None = None) -> Path:
    return socket_path(load(config).up.data_directory if directory is None else directory)


def _tree(testbed: Testbed) -> Tree:
    """Return a tree of the testbed for rich: the spines, then each leaf with its NICs."""
    settings, plan = testbed.fabric.settings, testbed.fabric.plan
    tree = Tree(
        f"fabric {testbed.fabric.name}: {settings.hosts} hosts, {settings.leaves} leaves, "
        f"{settings.spines} spines; hosts {_rate(settings.host_rate_bps)}, "
        f"fabric {_rate(settings.fabric_rate_bps)}"
    )
    spines = [node.name for node in plan.nodes.values() if node.kind == "spine"]
    tree.add(", ".join(spines))
    nics = testbed.fabric.nics()
    for node in plan.nodes.values():
        if node.kind == "leaf":
            branch = tree.add(node.name)
            for nic in nics:
                if nic.leaf == node.name:
                    branch.add(f"{nic.nic}  {nic.address}")
    return tree


def _rate(bps: int) -> str:
    return f"{bps / 1e6:g} Mbit/s" if bps else "not limited"


def _wrong(offset_ns: int, drift_ppb: float) -> str:
    """Return a clock's error as text: 'started 2.918 ms ahead, gains 9060.1 ppb'."""
    return (
        f"started {abs(offset_ns) / 1e6:.3f} ms {'behind' if offset_ns < 0 else 'ahead'}, "
        f"{'loses' if drift_ppb < 0 else 'gains'} {abs(drift_ppb):.1f} ppb"
    )


def _plain(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Print an error as one line on standard error and exit with code 1, or 2 for a wrong argument."""
    try:
        yield
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        typer.echo(f"fabrictime fabric: {where + ': ' if where else ''}{first['msg']}", err=True)
        raise typer.Exit(2) from None
    except (FabricError, NamespacesDenied, NoFabric, NoMpi) as error:
        typer.echo(f"fabrictime fabric: {error}", err=True)
        raise typer.Exit(1) from None
    except (ConfigError, ValueError) as error:
        typer.echo(f"fabrictime fabric: {error}", err=True)
        raise typer.Exit(2) from None
