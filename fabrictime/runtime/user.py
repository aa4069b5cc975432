"""The user's name, home and state directory, also for a user id without a passwd entry.

Containers run commands under arbitrary user ids, without HOME and USER. No command may fail for that.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import typing
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from schemas.input_error import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

SHARED_TEMPORARY: Final = Path("/var/tmp")  # noqa: S108 - used only below a name that this user must own
PATHS_AS_TEXT: Final = frozenset({"fleet"})
"""Settings of type text that may hold a path."""


_page_user: ContextVar[str] = ContextVar("page_user", default="")


@contextlib.contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Make `user_name` return `name`, a user of the web page, inside the context."""
    token = _page_user.set(name)
    try:
        yield
    finally:
        _page_user.reset(token)


def user_name() -> str:
    """Return the user's name, or for example `uid 54321` if the system has no name for it."""
    if page_user := _page_user.get():
        return page_user
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no passwd entry, by Python version
        return f"uid {os.getuid()}"


def state_directory(
    environ: Mapping[str, str] = os.environ, shared: Path = SHARED_TEMPORARY
) -> tuple[Path, str]:
    """Return (data directory, reason if it is not the default one, else "").

    The default is `$XDG_STATE_HOME/fabrictime` or `~/.local/state/fabrictime`. Without a writable home, the
    directory is `/var/tmp/fabrictime-UID`. Raises ValueError if that belongs to another user.
    """
    xdg_state_home = environ.get("XDG_STATE_HOME")
    if xdg_state_home:
        return Path(xdg_state_home) / "fabrictime", ""
    home = os.path.expanduser("~") if environ is os.environ else environ.get("HOME", "~")
    directory = Path(home) / ".local" / "state" / "fabrictime"
    if home != "~" and _can_make(directory):
        return directory, ""
    fallback = shared / f"fabrictime-{os.getuid()}"
    problem = "no home directory" if home == "~" else f"home directory {home} cannot be written to"
    remedy = "set HOME, XDG_STATE_HOME or --dir"
    if os.path.lexists(fallback) and (fallback.is_symlink() or fallback.stat().st_uid != os.getuid()):
        raise InputError(f"{problem}, and {fallback} belongs to another user: {remedy}")
    return fallback, f"{problem}: data in {fallback} ({remedy})"


def _can_make(directory: Path) -> bool:
    """Return whether a directory exists or can be created: its closest existing parent is writable."""
    there = next((place for place in (directory, *directory.parents) if place.exists()), None)
    return there == directory or (there is not None and os.access(there, os.W_OK | os.X_OK))


def expand_paths(model: type[BaseModel], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with `~` and `~user` expanded in each path of its model. Raises ValueError."""
    from pydantic import BaseModel  # not for commands that only need a name or a directory

    expanded: dict[str, Any] = {}
    for key, value in table.items():
        field = model.model_fields.get(key)
        inner = () if field is None else _types_of(field.annotation)
        below = next((model_type for model_type in inner if issubclass(model_type, BaseModel)), None)
        if isinstance(value, dict) and below is not None:
            expanded[key] = expand_paths(below, value)
        elif isinstance(value, str) and value.startswith("~") and (Path in inner or key in PATHS_AS_TEXT):
            expanded[key] = _expanded(key, value)
        else:
            expanded[key] = value
    return expanded


def _expanded(key: str, value: str) -> str:
    expanded = os.path.expanduser(value)
    if expanded.startswith("~"):
        raise InputError(f"{key} = {value!r}: no home directory is known for it, expected an absolute path")
    return expanded


def _types_of(annotation: Any) -> tuple[type, ...]:
    """Return the classes in an annotation such as `Path | None`."""
    parts = typing.get_args(annotation)
    if not parts:
        return (annotation,) if isinstance(annotation, type) else ()
    if typing.get_origin(annotation) in (dict, list, tuple):
        return ()
    return tuple(kind for part in parts for kind in _types_of(part))
