"""Records for tests, built from the defaults of their schemas."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, overload

from schemas import codec
from schemas.formats import format_of
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
    name = codec.name_of(kind)
    return agree(name, _record(codec.raw_schema(name), fields), fields)


def make_part(kind: str | type[Any], part: str, /, **fields: Any) -> Any:
    """Build a record that is nested in another one: `make_part("FlowReports", "Flow", nic="h1/eth0")`."""
    found = _find(codec.raw_schema(codec.name_of(kind)), part)
    if found is None:
        raise TypeError(f"{codec.name_of(kind)} contains no {part}")
    return _record(found, fields)


def agree(name: str, record: dict[str, Any], given: Container[str] = ()) -> dict[str, Any]:
    """Change the fields of a record that are not `given`, so that its fields do not contradict each other."""

    def put(field: str, value: Any) -> None:
        if field not in given:
            record[field] = value

    if "parts" in record:
        put("part", record["part"] % max(1, record["parts"]))
    if "window_end_ns" in record and record["window_end_ns"] <= record["window_start_ns"]:
        put("window_start_ns", min(record["window_start_ns"], 2**62 - 1))
        put("window_end_ns", record["window_start_ns"] + 1)
    if name == "Nic":
        if "nic" in given and "host" not in given:
            put("host", record["nic"].partition("/")[0])
            put("device", record["nic"].partition("/")[2])
        put("nic", f"{record['host']}/{record['device']}")
        put("clock", f"{record['host']}/{record['clock'].partition('/')[2]}")
    elif name == "Decision":
        put("decision_id", f"{record['shard']}/{record['epoch']}/{record['seq']}")
    elif name == "ContentionWindow":
        put("window_id", f"{record['shard']}/{record['link']}/{record['opened_ns']}")
    elif name in ("PathMaps", "FlowRoutes") and record["peer"] == record["nic"]:
        put("peer", "h2/eth0")
    return record


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
    return _plain(field["type"], field.get("min"), field.get("format"))


def _copy(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def _plain(schema: Any, minimum: float | None, form: str | None = None) -> Any:
    if isinstance(schema, list):
        return None if "null" in schema else _plain(schema[0], minimum, form)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return _record(schema, {})
    if kind == "array":
        return []
    if kind == "enum":
        return schema["symbols"][0]
    if form is not None:
        return format_of(form).example
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
