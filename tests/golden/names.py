"""Tables of renames: what the golden logs call a thing, and what the code calls it now.

The files hold the names of the day when they were recorded. Rename a topic, a field or a symbol in the code,
and add one line here. The keys are always the recorded names, even inside a renamed topic. The tables apply
to recorded inputs and to expected outputs alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

TOPICS: dict[str, str] = {
    # "fabric.ways": "fabric.flow-routes",
}
"""Recorded topic to topic. Strings such as `fabric.ways/3` inside records follow."""

FIELDS: dict[str, dict[str, str]] = {
    # "fabric.paths": {"paths.hops": "links"},
    # "*": {"**.hops": "links"},
}
"""Recorded topic (`*`: all) to recorded path to the field's name. A path names the fields from the record
down, joined by dots; arrays add nothing. `**.name` means a field of that name at any depth."""

SYMBOLS: dict[str, dict[str, Mapping[str, str] | Callable[[str], str]]] = {
    # "fabric.clock.offsets": {"suspects.reason": {"LIAR": "FALSETICKER"}},
}
"""Recorded topic to recorded path to recorded value to value, or a function of the recorded value. It applies
to strings and to the strings of an array: enum symbols, names of thresholds, ids of another form."""

PROSE: dict[str, set[str]] = {
    "*": {"**.text", "**.detail", "**.how"},
    "fabric.paths": {"**.contradiction"},
}
"""Free text: the test compares only whether there is any."""

IDS: dict[str, set[str]] = {
    "fabric.alerts": {"alert_id", "grouped"},
    "fabric.contention": {"window_id"},
    "fabric.decisions": {"decision_id", "reason.id"},
}
"""Ids whose form may change: the test compares which of them are equal."""

IGNORED: dict[str, set[str]] = {}
"""Fields that differ from run to run."""
