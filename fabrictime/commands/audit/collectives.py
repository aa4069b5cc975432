"""The command `fabrictime audit collectives`: measures collectives over several hosts; finds slow hosts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fabrictime.commands.options import (
    USAGE_EXIT,
    Json,
    duration_s,
    host_list,
    running_log,
    with_settings,
)
from schemas.input_error import InputError

if TYPE_CHECKING:
    from fabrictime.audit.collectives import Figures, Launch
    from schemas.skus import Sku


@with_settings
def collectives(
    settings: Any,
    hosts: Annotated[str, typer.Option("--hosts", metavar="H1,H2", help="Hosts, at least two.")],
    operation: Annotated[
        str, typer.Option("--operation", help="all_reduce, or another one of nccl-tests.")
    ] = "all_reduce",
    sku: Annotated[
        str, typer.Option("--sku", metavar="TYPE", help="Machine type, such as h100; default: audit.sku.")
    ] = "",
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs of a host; 0: the machine type's.")] = 0,
    program: Annotated[
        str,
        typer.Option(
            "--program", metavar="PATH", help="Program; default: the operation's, on the hosts' PATH."
        ),
    ] = "",
    launcher: Annotated[
        str, typer.Option("--launcher", metavar="PATH", help="mpirun or srun; default: srun within Slurm.")
    ] = "",
    launch_option: Annotated[
        list[str] | None, typer.Option("--launch-option", help="Further argument of the launcher; repeated.")
    ] = None,
    limit: Annotated[str, typer.Option("--limit", metavar="TIME", help="End of each run.")] = "2m",
    publish: Annotated[bool, typer.Option("--publish", help="Publish the results to fabric.audit.")] = False,
    as_json: Json = False,
) -> None:
    """Measure a collective over hosts with 1, 2, 4 and 8 queue pairs, and find the hosts that slow it.

    All hosts must be idle and have nccl-tests or rccl-tests with MPI. Exit code 0: full bandwidth, 1: too
    low, or a slow host, 2: unknown.
    """
    from fabrictime.audit import collectives as runner
    from fabrictime.audit import fleet
    from fabrictime.audit.report import AuditReport, verdict
    from fabrictime.commands.audit import fleet as audit_fleet
    from schemas.records import AuditStatus
    from schemas.skus import load_skus
    from schemas.topics import AUDIT
    from streams.audit.results import Scope
    from streams.audit.traffic.collectives import FACT, HOSTS, collective_results

    names = host_list(hosts)
    kind = load_skus().get(sku or settings.audit.sku)
    started_ns = time.time_ns()
    _check(names, operation, sku, kind, gpus)
    launch = runner.Launch(
        launcher or runner.default_launcher(),
        program or f"{operation}_perf",
        gpus or (kind.gpus if kind is not None else 0),
        tuple(launch_option or ()),
        duration_s(limit),
    )
    expected = kind.lowest(FACT) if kind is not None and operation == "all_reduce" else 0.0
    figures = _measured(launch, names, expected or None)
    ended_ns = time.time_ns()
    run = fleet.run_name(started_ns / 1e9)
    type_name = kind.name if kind is not None else ""
    scope = Scope(run, ended_ns, dict.fromkeys(names, type_name), {})
    results = collective_results(names, *figures[:2], expected or None, figures.search, scope)
    report = AuditReport(run, names, {}, (), started_ns, ended_ns).with_results(results)
    if publish:
        fleet.publish(running_log(settings), AUDIT, results)
    audit_fleet.show(report, audit_fleet.Output(as_json, everything=True))
    is_known = all(
        result["status"] is not AuditStatus.UNKNOWN for result in results if result["check"] == HOSTS.check
    )
    raise typer.Exit(verdict(report)[0] or (0 if is_known else USAGE_EXIT))


def _check(names: tuple[str, ...], operation: str, sku: str, kind: Sku | None, gpus: int) -> None:
    """Raise ValueError for invalid options or invalid combinations of options."""
    from fabrictime.audit.collectives import OPERATIONS
    from schemas.skus import load_skus

    if len(names) < 2:
        raise InputError(f"--hosts {','.join(names)}: expected at least two hosts")
    if operation not in OPERATIONS:
        raise InputError(f"--operation {operation}: expected {', '.join(OPERATIONS)}")
    if sku and kind is None:
        raise InputError(f"--sku {sku}: expected {', '.join(load_skus())}")
    if not gpus and kind is None:
        raise InputError("--gpus 0: expected the GPUs of a host, or a machine type by --sku")


def _measured(launch: Launch, names: tuple[str, ...], minimum: float | None) -> Figures:
    from rich.console import Console

    from fabrictime.audit.collectives import measure_all

    with Console(stderr=True).status("starting") as status:
        return measure_all(launch, names, minimum, lambda text: status.update(text))
