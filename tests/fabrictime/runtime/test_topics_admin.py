"""`fabrictime topics create` on a broker that learns of a new topic later than the controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fabrictime.bench._pipeline import embedded_log
from fabrictime.runtime import topics_admin
from schemas import codec
from schemas.kafka.reader import TopicMissing
from schemas.kafka.schema_log import read_schemas


def test_a_topic_that_appears_late_gets_its_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []

    def late(cluster: Any) -> Any:
        reads.append(cluster)
        if len(reads) < 3:
            raise TopicMissing("fabric.schemas: does not exist")
        return read_schemas(cluster)

    monkeypatch.setattr(topics_admin, "read_schemas", late)
    monkeypatch.setattr(topics_admin, "RETRY_S", 0.0)
    count = len(codec.released_schemas())
    with embedded_log(tmp_path, 2) as bootstrap:
        assert topics_admin.publish_schemas(bootstrap).endswith(f"{count} schemas published")
        assert len(reads) == 3


def test_a_topic_that_never_appears_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(cluster: Any) -> Any:
        raise TopicMissing("fabric.schemas: does not exist")

    monkeypatch.setattr(topics_admin, "read_schemas", never)
    monkeypatch.setattr(topics_admin, "APPEAR_S", 0.0)
    with embedded_log(tmp_path, 2) as bootstrap, pytest.raises(TopicMissing):
        topics_admin.publish_schemas(bootstrap)
