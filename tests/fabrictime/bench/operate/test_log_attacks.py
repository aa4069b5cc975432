"""The forgeries of the bench are forgeries: a verifier refuses each, and accepts the genuine record."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictime.bench.operate._log_attacks import Attacker
from schemas import codec
from schemas.kafka.message import Message
from schemas.signing import Verifier, new_key
from schemas.topics import CONFIG, DECISIONS, FALLBACKS


@pytest.mark.parametrize("topic", [CONFIG, DECISIONS, FALLBACKS], ids=lambda topic: str(topic.name))
def test_each_forgery_is_one(tmp_path: Path, topic) -> None:
    verifier = Verifier(new_key(tmp_path / "signing.key"))
    attacker = Attacker("127.0.0.1:9", tmp_path, "h1")
    records = {
        CONFIG: ("*", attacker.config(1)),
        DECISIONS: ("h1", attacker.decision(50_001)),
        FALLBACKS: ("h1", attacker.fallbacks()),
    }
    key, genuine = records[topic]

    def is_accepted(record) -> bool:
        value = codec.encode(topic.record, record)
        return verifier.accepts(Message(1, topic.name, 0, 0, key, value))

    forgeries = dict(attacker.forgeries(topic, key, genuine))
    assert len(forgeries) == 7
    assert {name for name, record in forgeries.items() if is_accepted(record)} == set()
    assert is_accepted(attacker.signer.signed(topic, key, genuine))
