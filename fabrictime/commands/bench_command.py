"""The command `fabrictime bench`, which runs benchmarks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fabrictime.commands.options import (
    Json,
    stop,
)


def bench(
    name: Annotated[str | None, typer.Argument(help="Bench to run, all, or compare.")] = None,
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="Parts of the bench, by default all; after compare: BENCH PART."),
    ] = None,
    as_json: Json = False,
    quick: Annotated[
        bool, typer.Option(help="Shorten the measurement; proves only that the bench runs.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the benches and their targets.")] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="COMMIT", help="With compare: measure this commit beside the checkout."),
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="With compare: pairs of runs.")] = 3,
    own_benches: Annotated[
        bool, typer.Option("--own-benches", help="With compare: that commit runs its own benches.")
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With compare: keep the other commit's build there for the next time."
        ),
    ] = None,
) -> None:
    """Run benchmarks on this machine, and compare the results with the project's targets."""
    from fabrictime.bench import _show, names

    if listed:
        _show.print_list(as_json=as_json)
        return
    if (name == "compare") != (against is not None):
        stop("bench compare: expected --against COMMIT, as in `bench compare --against HEAD~1 pipeline`")
    if against is not None:
        from fabrictime.bench import _compare

        compared, *their_parts = parts or ["pipeline"]
        _check_parts(compared, their_parts, names())
        run = partial(_compare.main, against, compared, their_parts, own_benches=own_benches, keep=keep)
        try:
            code = run(pairs=pairs, quick=quick, as_json=as_json)
        except ValueError as error:
            stop(f"bench compare: {error}", 1)
        raise typer.Exit(code)
    _check_parts(name or "", parts or [], [*names(), "all"])
    benches = names() if name == "all" else [str(name)]
    raise typer.Exit(_show.run(benches, as_json=as_json, quick=quick, parts=tuple(parts or ())))


def _check_parts(name: str, parts: list[str], benches: list[str]) -> None:
    """Stop with a usage error if a bench or a part of it does not exist."""
    from fabrictime.bench import parts_of

    if name not in benches:
        stop(f"bench {name}: expected one of {', '.join(benches)}")
    expected = () if name == "all" else parts_of(name)
    if unknown := [part for part in parts if part not in expected]:
        stop(f"bench {name} {unknown[0]}: expected {', '.join(expected) or 'no part'}")
