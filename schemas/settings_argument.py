"""Runs one service with its settings as JSON on the command line, for benchmarks and tests."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)


def run_service(name: str, model: type[M], service: Callable[[M], int | None]) -> NoReturn:
    """Run a service with the settings in the first argument (JSON, by default `{}`), and exit with its code.

    Invalid settings end the process with one line that names the setting.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = model.model_validate_json(sys.argv[1] if len(sys.argv) > 1 else "{}")
    except ValidationError as error:
        sys.exit(f"{name}: {first_error(error)}")
    sys.exit(service(settings))


def first_error(error: ValidationError) -> str:
    """Return the setting and the text of the first error in `error`, as one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'settings'}: {first['msg']}"
