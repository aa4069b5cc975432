"""Writes the example configuration: every key with its meaning, accepted values and default.

The text comes from the settings models. Every key is commented out.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fabrictime.runtime.config import TABLES, field_schema, model_of, takes
from fabrictime.runtime.shared_values import SHARED

_WIDTH: Final = 100
_HEAD: Final = """\
# Every setting of fabrictime, with its default. Made by `fabrictime config example`.
# Copy what you change into a file of your own and pass it as --config FILE; fabrictime.toml in the working
# directory is read without being named. Keys that are not set are filled in as the comments say.
"""
_HIDDEN_DEFAULTS: Final = {"up.data_directory": "$XDG_STATE_HOME/fabrictime, or ~/.local/state/fabrictime"}


def example() -> str:
    """Return the whole file."""
    lines = [_HEAD]
    for name in TABLES:
        model = model_of(name)
        schema = model.model_json_schema()
        doc = (model.__doc__ or "").strip().splitlines()[0]
        lines += [f"# {doc}", *_table(name, schema, schema), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(path: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of one table, then those of the tables in it."""
    yield f"[{path}]"
    below: list[tuple[str, dict[str, Any]]] = []
    for key, raw in schema.get("properties", {}).items():
        field = field_schema({**root, "properties": {key: raw}}, [key])
        inner, full = _inner(field), f"{path}.{key}"
        if inner is not None and full not in SHARED:
            below.append((full, inner))
            continue
        text = f"{field.get('description', key)}; takes {takes(field)}"
        if full in SHARED:
            text += f"; not set: {SHARED[full].text}"
        elif full in _HIDDEN_DEFAULTS:
            text += f"; not set: {_HIDDEN_DEFAULTS[full]}"
        yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ")
        yield f"#{key} = {_value(None if full in SHARED else field.get('default'))}".rstrip()
    for name, inner in below:
        yield ""
        yield from _table(name, inner, root)


def _inner(field: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a table in a table; None where the field is none."""
    for branch in (field, *field.get("anyOf", [])):
        if "properties" in branch:
            return dict(branch)
    return None


def _value(value: Any) -> str:
    """Return a value as TOML writes it; nothing where there is none."""
    if value is None:
        return ""
    if isinstance(value, dict):
        known = {key: inner for key, inner in value.items() if inner is not None}
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in known.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(element) for element in value) + "]"
    return json.dumps(value)
