"""Write docs/topics.md from schemas/: topics with key, retention, readers, writers; records with fields.

`python tools/topics_doc.py` writes it; a test checks that it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from schemas import codec  # noqa: E402 - the checkout, wherever this is called from
from schemas.topics import DAY_MS, HOUR_MS, TOPICS, Topic  # noqa: E402

PAGE = ROOT / "docs" / "topics.md"
HEAD = """# Topics and records

Generated from `schemas/` by `tools/topics_doc.py`.

Kafka is fabrictime's public interface: subscribe to any of these. Values are Avro, single-object encoding
(`C3 01`, eight bytes of CRC-64-AVRO fingerprint, body), or the Confluent wire format where a schema registry
is set. Keys are raw UTF-8, partitioned by murmur2. All topics carry LogAppendTime; times are nanoseconds.
Schemas by fingerprint, as JSON: `fabric.schemas`, for all versions that write to the log.
"""


def kept(topic: Topic) -> str:
    """Return the retention of a topic as text, with its setting."""
    parts = ["compacted"] if topic.compacted else []
    if topic.retention_ms is not None:
        whole_days = topic.retention_ms % DAY_MS == 0 and topic.retention_ms > DAY_MS
        unit, size = ("d", DAY_MS) if whole_days else ("h", HOUR_MS)
        parts.append(f"{topic.retention_ms // size} {unit}")
    text = " + ".join(parts)
    return f"{text} (`{topic.retention_setting}`)" if topic.retention_setting else text


def type_name(kind: Any) -> str:
    """Return an Avro type as text for a table."""
    if isinstance(kind, list):
        return " or ".join(type_name(branch) for branch in kind)
    if isinstance(kind, dict):
        if kind["type"] == "array":
            return f"array of {type_name(kind['items'])}"
        if kind["type"] == "enum":
            return " / ".join(kind["symbols"])
        return f"`{kind['name']}`" if kind["type"] == "record" else str(kind["type"])
    return str(kind)


def inner_records(kind: Any) -> list[Any]:
    """Return the schemas of the records that a type contains, in order."""
    if isinstance(kind, list):
        return [record for branch in kind for record in inner_records(branch)]
    if isinstance(kind, dict):
        if kind["type"] == "record":
            return [kind]
        if kind["type"] == "array":
            return inner_records(kind["items"])
    return []


def record_lines(schema: codec.RecordSchema, level: str) -> list[str]:
    """Return the Markdown lines of a record and of the records inside it; `level` is its heading mark."""
    lines = [
        f"{level} `{schema['name']}`",
        "",
        schema["doc"],
        "",
        "| field | type | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{f['name']}` | {type_name(f['type'])} | {f['doc']} |" for f in schema["fields"]]
    lines.append("")
    for field in schema["fields"]:
        for inner in inner_records(field["type"]):
            lines += record_lines(inner, "####")
    return lines


def page() -> str:
    """Return the text of docs/topics.md."""
    lines = [HEAD, "| topic | key | record | kept | written by | read by |", "|---|---|---|---|---|---|"]
    for t in TOPICS.values():
        cells = [f"`{t.name}`", t.key, f"`{t.record}`", kept(t), ", ".join(t.writers), ", ".join(t.readers)]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for topic in TOPICS.values():
        lines += [f"## `{topic.name}`", "", f"{topic.doc[0].upper()}{topic.doc[1:]}.", ""]
        lines += record_lines(codec.raw_schema(topic.record), "###")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
