"""The bench of mixed versions counts rejects, lost decisions and late windows."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure
from fabrictime.bench.operate._later_version import later_schema
from fabrictime.bench.operate.versions import MixedWatch, figures_of
from schemas import codec
from schemas.kafka.message import Message
from schemas.records import RejectReason
from schemas.topics import DECISIONS, REJECTS
from tests.records import make


@pytest.fixture
def watch() -> MixedWatch:
    """Return a watch that has taken a decision of each version, and a reject."""
    watch = MixedWatch()
    later = codec.fingerprint_of_schema(later_schema(codec.raw_schema("Decision")))
    for name, fingerprint in (("ours", codec.fingerprint_of("Decision")), ("theirs", later)):
        value = codec.SINGLE_OBJECT + fingerprint
        record = make("Decision", decision_id=name)
        watch.take(Message(0, DECISIONS.name, 0, 0, name, value), record)
    reject = make("Reject", topic="fabric.alerts", reader="links", reason=RejectReason.UNKNOWN_SCHEMA)
    watch.take(Message(0, REJECTS.name, 0, 0, "", codec.header("Reject")), reject)
    return watch


def test_records_of_the_later_version_and_rejects_are_counted(watch: MixedWatch) -> None:
    assert (watch.later, watch.rejects) == (1, {"links: fabric.alerts UNKNOWN_SCHEMA": 1})


def test_figures_state_both_times_and_the_first_rejects(watch: MixedWatch) -> None:
    of_upgrade, of_rollback = MixedWatch(), MixedWatch()
    watch.gap_s = of_upgrade.gap_s = 1.5
    figures = figures_of(watch, of_upgrade, of_rollback)
    late, rejects = figures["mixed_versions_windows_late_s"], figures["mixed_versions_rejects"]
    assert isinstance(late, Figure)
    assert (late.value, late.note) == (1.5, "upgrade 1.5 s, rollback 0.0 s")
    assert isinstance(rejects, Figure)
    assert rejects.note == "1 record of 12 later schemas, 1 x links: fabric.alerts UNKNOWN_SCHEMA"
