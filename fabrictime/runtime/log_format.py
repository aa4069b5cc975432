"""Defines the two formats of the services' logs: lines of text, or one JSON object per line.

Lines about a decision, its action or an alert carry ids as fields (`schemas/log_fields.py`), so that a search
for one `decision_id` or `subject` finds all of them.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

from schemas.log_fields import FIELDS

LogFormat = Literal["text", "json"]
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time (RFC 3339, UTC), level, logger, message, ids, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the log record as one line of JSON."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_format(log_format: LogFormat) -> None:
    """Set the format of all handlers of this process."""
    formatter = JsonFormatter() if log_format == "json" else logging.Formatter(TEXT)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)


def message_of(line: str) -> str:
    """Return the message in a JSON log line; return any other line unchanged."""
    if not line.startswith("{"):
        return line
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, TypeError):
        return line
