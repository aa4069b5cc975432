"""A running testbed: faults, traffic and truth, and the control socket that other processes use.

The socket belongs to the process that built the testbed, since only its descendants are in the namespaces.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Self

from fabrictime.testbed.fabric.fabric import Fabric, FabricError
from fabrictime.testbed.fabric.faults import FaultEvent, Faults, parse_fault
from fabrictime.testbed.fabric.truth import PathUnclear, Truth
from fabrictime.testbed.jobs.jobs import Jobs, JobSpec
from fabrictime.testbed.jobs.optimum import Shape, best_goodputs_bps, choose_ports, shape_of
from fabrictime.testbed.jobs.traffic import FlowResult, FlowSpec, Traffic
from fabrictime.testbed.processes.fork_server import ForkServer
from fabrictime.testbed.settings import FabricSettings
from schemas import control_socket
from schemas.control_socket import Request, exchange
from schemas.ipc import InUse, connect

_PROGRESS_S = 0.5


class NoFabric(RuntimeError):
    """No running testbed answers on the socket; `str()` gives the reason in one line."""


def socket_path(data_directory: Path) -> Path:
    """Return the path of the control socket of the testbed that uses a data directory."""
    return data_directory / "run" / "fabric.sock"


def flows_path(control: Path) -> Path:
    """Return the path of the flow reporter's registration socket, which is beside the control socket."""
    return control.parent / "flows.sock"


def actuator_path(control: Path) -> Path:
    """Return the path of the actuator's socket for owners of flows, which is beside the control socket."""
    return control.parent / "control.sock"


class Testbed:
    """A testbed with its faults, traffic, jobs and truth, used as `with Testbed(settings, path) as testbed`.

    `registrations` and `control` are the sockets of a flow reporter and an actuator; default: beside `path`.
    """

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(
        self,
        settings: FabricSettings | None = None,
        path: Path | None = None,
        registrations: Path | None = None,
        control: Path | None = None,
    ) -> None:
        self.fabric = Fabric(settings)
        self.faults = Faults(self.fabric)
        if path is not None:
            registrations = registrations or flows_path(path)
            control = control or actuator_path(path)
        self._fork_server = ForkServer()
        self.fabric.on_close(self._fork_server.close)
        self.traffic = Traffic(self.fabric, self._fork_server, registrations, control)
        self.jobs = Jobs(self.fabric, self._fork_server, registrations, control)
        self.truth = Truth(self.fabric, self.faults)
        self.reported_moves: list[Callable[[], object]] = []
        self._path = path

    def __enter__(self) -> Self:
        self.fabric.open()
        try:
            if self._path is not None:
                self._fork_server.open()
                server = ControlServer(self, self._path)
                self.fabric.on_close(server.close)
        except BaseException:
            self.fabric.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.fabric.close()

    def shape(self) -> Shape:
        """Return the leaf of each NIC and the rates of the links, from which `best` computes the optimum."""
        settings = self.fabric.settings
        return shape_of(
            {nic.nic: nic.leaf for nic in self.fabric.nics()},
            settings.spines * settings.links_per_leaf_spine,
            settings.host_rate_bps,
            settings.fabric_rate_bps,
            settings.mtu_bytes,
        )

    def best(self, *specs: JobSpec) -> tuple[list[str], float | None]:
        """Return the NICs of the first job's ranks, and the best total goodput of all jobs at once, bit/s.

        The goodput is None if no link limits it.
        """
        flows = []
        for spec in specs:
            nics = self.jobs.nics(spec)
            plan = self.jobs.plan(spec)
            flows.append([(nics[a], nics[b], size) for phase in plan.phases() for a, b, size in phase])
        try:
            best_bps = sum(best_goodputs_bps(self.shape(), flows))
        except ValueError:
            best_bps = None
        return self.jobs.nics(specs[0]), best_bps

    def spread_ports(self, spec: JobSpec, candidates: Iterable[int]) -> tuple[int, ...]:
        """Return source ports that spread the job's connections evenly over links between leaf and spine.

        `spec.dport` must be set. Raises ValueError.
        """
        nics = self.jobs.nics(spec)
        spines = sorted(node.name for node in self.fabric.plan.nodes.values() if node.kind == "spine")

        def spine_of(source: str, peer: str, port: int) -> int | None:
            path = self.truth.likely_path_of(source, peer, port, spec.dport, "tcp")
            return None if len(path) < 4 else spines.index(self.fabric.links[path[1]][1].node)

        return tuple(choose_ports(self.shape(), self.jobs.plan(spec), nics, spine_of, candidates))

    def move(
        self, spine: str, other: str, leaves: list[str] | None = None, *, planned: bool = True
    ) -> list[str]:
        """Exchange two spines at some leaves, see `Fabric.move`; return the ids of the resulting links.

        If not `planned`, the topology file is not updated, so the cables count as miswired. Raises
        FabricError while a fault is in force, since the fault's cable could no longer be found.
        """
        active = self.faults.active()
        if active:
            raise FabricError(f"move of {spine}: fault {active[0].fault} is in force, expected none")
        links = self.fabric.move(spine, other, leaves)
        for report in self.reported_moves if planned else ():
            report()
        return links


class ControlServer(control_socket.ControlServer):
    """Answers requests about one testbed on its control socket."""

    def __init__(self, testbed: Testbed, path: Path) -> None:
        """Open the socket. Raises FabricError if another testbed answers on it, or it cannot be opened."""
        self._testbed = testbed
        commands: dict[str, Callable[[Request], Iterator[Any]]] = {
            "show": self._show,
            "fault": self._fault,
            "clear": self._clear,
            "flow": self._flow,
            "job": self._job,
            "truth": self._truth,
            "queues": self._queues,
            "path": self._path_of,
            "move": self._move,
        }
        try:
            super().__init__(path, "fabric", commands, (FabricError, PathUnclear))
        except InUse:
            raise FabricError(f"a fabric is running at {path} already") from None
        except OSError as error:
            raise FabricError(f"socket {path}: {os.strerror(error.errno or 0)}") from error

    def _show(self, request: Request) -> Iterator[Any]:
        fabric = self._testbed.fabric
        yield {
            "name": fabric.name,
            "pid": os.getpid(),
            "settings": fabric.settings.model_dump(),
            "nics": [asdict(nic) for nic in fabric.nics()],
            "links": list(fabric.links),
            "faults": [_event(event) for event in self._testbed.faults.active()],
            "flows": [
                asdict(flow.spec) | {"flow": flow.number, "sport": flow.sport, "dport": flow.dport}
                for flow in self._testbed.traffic.running()
            ],
        }

    def _fault(self, request: Request) -> Iterator[Any]:
        yield _event(self._testbed.faults.add(parse_fault(_text(request, "line"))))

    def _clear(self, request: Request) -> Iterator[Any]:
        which = None if request.get("fault") is None else _text(request, "fault")
        yield [_event(event) for event in self._testbed.faults.clear(which)]

    def _flow(self, request: Request) -> Iterator[Any]:
        values = {key: value for key, value in request.items() if key != "command"}
        names = {field.name for field in fields(FlowSpec)}
        if unknown := set(values) - names:
            raise ValueError(
                f"flow: unknown {', '.join(sorted(unknown))}; expected {', '.join(sorted(names))}"
            )
        flow = self._testbed.traffic.start(FlowSpec(**values))
        nic = self._testbed.fabric.nic
        started = {"flow": flow.number, "sport": flow.sport, "dport": flow.dport}
        try:
            yield started | {
                "path": self._testbed.truth.likely_path_of(
                    nic(flow.spec.source).nic,
                    nic(flow.spec.destination).nic,
                    flow.sport,
                    flow.dport,
                    flow.spec.protocol,
                )
            }
        except PathUnclear as unclear:
            yield started | {"path": None, "why": str(unclear)}
        except GeneratorExit:  # the client left: so does its flow
            flow.kill()
            raise
        yield _flow_result(flow.wait())

    def _job(self, request: Request) -> Iterator[Any]:
        values = {key: value for key, value in request.items() if key != "command"}
        names = {field.name for field in fields(JobSpec)}
        if unknown := set(values) - names:
            raise ValueError(f"job: unknown {min(unknown)}; expected {', '.join(sorted(names))}")
        for name in ("hosts", "sports"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        spec = JobSpec(**values)
        ranks, best_bps = self._testbed.best(spec)
        job = self._testbed.jobs.start(spec)
        try:
            yield {
                "job": job.number,
                "hosts": ranks,
                "iteration_bytes": job.iteration_bytes,
                "best_goodput_bps": best_bps,
                "connections": [asdict(one) for one in job.connections],
            }
            sent, due = 0, 0.0
            while job.running:
                job.wait_until_over(max(0.0, due - time.monotonic()))
                due = time.monotonic() + _PROGRESS_S
                fresh = job.iterations(sent)
                sent += len(fresh)
                yield {"iterations": [asdict(one) for one in fresh]}
        except GeneratorExit:  # the client left: so does its job
            job.kill()
            raise
        result = job.wait()
        yield {
            "ended": True,
            "iterations": len(result.iterations),
            "elapsed_s": result.elapsed_s,
            "goodput_bps": result.goodput_bps,
            "best_goodput_bps": best_bps,
            "moves": result.moves,
            "received_bytes": result.received_bytes,
            "retransmits": result.retransmits,
            "lost_connections": result.lost_connections,
            "cpu_s": result.cpu_s,
            "refused": result.refused,
        }

    def _truth(self, request: Request) -> Iterator[Any]:
        yield self._testbed.truth.snapshot()

    def _queues(self, request: Request) -> Iterator[Any]:
        """Yield the queue lengths of some links repeatedly, until the client disconnects or time is up."""
        links = [_text({"link": link}, "link") for link in request["links"]]
        interval_s, duration_s = float(request["interval_s"]), float(request["duration_s"])
        if not 0.001 <= interval_s <= 60 or not 0 < duration_s <= 86_400:
            raise ValueError(
                f"interval_s {interval_s:g}, duration_s {duration_s:g}: expected 0.001 to 60, 0 to 86400"
            )
        end_s = time.monotonic() + duration_s
        samples: list[tuple[int, list[int]]] = []
        reported_s = due_s = time.monotonic()
        while due_s < end_s:
            samples.append((time.monotonic_ns(), self._testbed.truth.queued(links)))
            now_s = time.monotonic()
            if now_s - reported_s >= _PROGRESS_S:
                yield {"links": links, "samples": samples}
                samples, reported_s = [], now_s
            due_s = max(due_s + interval_s, now_s)
            time.sleep(max(0.0, due_s - time.monotonic()))
        yield {"links": links, "samples": samples}

    def _move(self, request: Request) -> Iterator[Any]:
        leaves = [_text({"leaf": leaf}, "leaf") for leaf in request.get("leaves") or []]
        planned = not request.get("miswire")
        yield self._testbed.move(
            _text(request, "spine"), _text(request, "other"), leaves or None, planned=planned
        )

    def _path_of(self, request: Request) -> Iterator[Any]:
        protocol = _text(request, "protocol") if "protocol" in request else "udp"
        if protocol not in ("udp", "tcp"):
            raise ValueError(f"protocol {protocol!r}: expected udp or tcp")
        truth = self._testbed.truth
        yield (truth.likely_path_of if request.get("likely") else truth.path_of)(
            _text(request, "source"),
            _text(request, "destination"),
            int(request["sport"]),
            int(request["dport"]),
            "udp" if protocol == "udp" else "tcp",
        )


class ControlClient:
    """A client of a running testbed. Raises NoFabric if no testbed answers, FabricError for a refusal."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, command: str, timeout_s: float | None = 30.0, **values: Any) -> Any:
        """Send a command and return its only result."""
        for result in self.stream(command, timeout_s, **values):
            return result
        raise NoFabric(f"the fabric at {self._path} hung up without an answer")

    def tcp_route(self, source: str, destination: str, sport: int, dport: int) -> list[str]:
        """Return the links that TCP packets with these ports most likely take, by kernel route lookup."""
        ports: dict[str, Any] = {"sport": sport, "dport": dport, "protocol": "tcp", "likely": True}
        links: list[str] = self.ask("path", source=source, destination=destination, **ports)
        return links

    def stream(
        self, command: str, timeout_s: float | None = None, **values: Any
    ) -> Generator[Any, None, None]:
        """Send a command and yield its results as they arrive."""
        try:
            connection = connect(self._path, timeout_s)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise NoFabric(f"no running fabric at {self._path}: {reason}") from None
        try:
            for answer in exchange(connection, command, values):
                if not answer["ok"]:
                    raise FabricError(answer["error"])
                yield answer["result"]
        except OSError as error:
            raise NoFabric(f"the fabric at {self._path} hung up: {error}") from None


def _text(request: Request, key: str) -> str:
    value = request[key]
    if not isinstance(value, str | int):
        raise ValueError(f"{key} {value!r}: expected text")
    return str(value)


def _event(event: FaultEvent) -> dict[str, Any]:
    return asdict(event) | {"text": str(event.spec)}


def _flow_result(result: FlowResult) -> dict[str, Any]:
    return asdict(result) | {"goodput_bps": result.goodput_bps, "loss": result.loss}
