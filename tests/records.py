"""Records for tests, built from the defaults of their schemas."""

from __future__ import annotations

from typing import Any, overload

from schemas import codec
from schemas.records import Reason, ReasonKind
from schemas.topics import R

ZERO: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "boolean": False,
    "int": 0,
    "long": 0,
    "float": 0.0,
    "double": 0.0,
}


@overload
def make(kind: type[R], /, **fields: Any) -> R: ...
@overload
def make(kind: str, /, **fields: Any) -> Any: ...
def make(kind: Any, /, **fields: Any) -> Any:
    """Build a record of a name or type of `schemas.records`; fields that are not given take plain defaults.

    A field without a default in the schema is null if it may be, else empty or the smallest allowed number;
    an enum takes its first symbol. Raises TypeError for a field that the record does not have.
    """
    return _record(codec.raw_schema(codec.name_of(kind)), fields)


def make_part(kind: str | type[Any], part: str, /, **fields: Any) -> Any:
    """Build a record that is nested in another one: `make_part("FlowReports", "Flow", nic="h1/eth0")`."""
    found = _find(codec.raw_schema(codec.name_of(kind)), part)
    if found is None:
        raise TypeError(f"{codec.name_of(kind)} contains no {part}")
    return _record(found, fields)


def _record(schema: codec.RecordSchema, given: dict[str, Any]) -> dict[str, Any]:
    names = [field["name"] for field in schema["fields"]]
    if unknown := set(given) - set(names):
        raise TypeError(f"{schema['name']} has no field {', '.join(sorted(unknown))}")
    return {
        field["name"]: given[field["name"]] if field["name"] in given else _default(field)
        for field in schema["fields"]
    }


def _default(field: codec.FieldSchema) -> Any:
    if "default" in field:
        default = field["default"]
        return default.encode("latin-1") if field["type"] == "bytes" else _copy(default)
    return _plain(field["type"], field.get("min"))


def _copy(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def _plain(schema: Any, minimum: float | None) -> Any:
    if isinstance(schema, list):
        return None if "null" in schema else _plain(schema[0], minimum)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return _record(schema, {})
    if kind == "array":
        return []
    if kind == "enum":
        return schema["symbols"][0]
    value = ZERO[kind]
    return value if minimum is None else type(value)(max(value, minimum))


def _find(schema: Any, name: str) -> Any:
    """Return the nested record schema of that name."""
    if isinstance(schema, list):
        return next((found for branch in schema if (found := _find(branch, name))), None)
    if not isinstance(schema, dict):
        return None
    if schema.get("name") == name and schema["type"] == "record":
        return schema
    inner = [field["type"] for field in schema.get("fields", ())] or [schema.get("items")]
    return next((found for each in inner if (found := _find(each, name))), None)


def reason_record(text: str, kind: str | None = None) -> Reason:
    """Return a `Reason` record from a window's id, `subject/seq`, or a flow id.

    Without a `kind`: COLLISION for a window, DOWN for a subject, DELAY for a flow.
    """
    rest, _, number = text.rpartition("/")
    link = rest.partition("/")[2]
    if number.isdigit() and ">" in link and "<>" not in rest:
        return {"kind": ReasonKind(kind or "COLLISION"), "subject": link, "seq": None, "window_id": text}
    if number.isdigit():
        return {"kind": ReasonKind(kind or "DOWN"), "subject": rest, "seq": int(number), "window_id": None}
    return {"kind": ReasonKind(kind or "DELAY"), "subject": text, "seq": None, "window_id": None}
