"""The command `fabrictime mcp`, a server of the Model Context Protocol."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fabrictime.commands.options import ConfigFile, DataDir, settings_of, stop
from schemas.secret_file import read_secret


def mcp(
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of the page; without it that of the `up` here.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Owner-only file with a token of the page.")
    ] = None,
    config: ConfigFile = None,
    directory: DataDir = None,
) -> None:
    """Answer an assistant on standard input and output, by the Model Context Protocol. Read-only.

    An assistant starts it: `claude mcp add fabrictime -- fabrictime mcp --url http://page:8480`.
    """
    from fabrictime.runtime import status

    if find_spec("mcp") is None or find_spec("httpx") is None:
        stop("mcp: needs the package mcp: pip install 'fabrictime[mcp]'")
    if url is None:
        try:
            state = status.read(settings_of(config, directory).up.data_directory)
        except ValueError as error:
            stop(f"{error}; expected --url", 1)
        url = state["addresses"].get("web")
        if url is None:
            stop("up: it serves no page, expected --url or up.web = true", 1)
    from fabrictime.mcp.server import main

    try:
        token = None if token_file is None else read_secret(token_file, "--token-file", "a token").decode()
    except ValueError as error:
        stop(str(error))
    raise typer.Exit(main(url, token))
