"""Workers sign what makes actuators act, and believe signed config alone where signatures are required."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from schemas.kafka.start import BEGINNING
from schemas.signing import Signer, Verifier, new_key
from schemas.topics import CONFIG, DECISIONS, FALLBACKS, POLICY_CYCLES
from streams.policy.stage import PolicyStage
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.faust.global_tables import GlobalTableReader
from streams.runtime.faust.publishing import Publisher
from streams.runtime.operator import Operator, Output
from tests.embedded_log import EmbeddedLog
from tests.records import make
from tests.streams.runtime.fake_context import FakeContext


@pytest.fixture
def public_key(tmp_path: Path) -> Path:
    return new_key(tmp_path / "key")


async def test_a_worker_signs_decisions_and_fallbacks(public_key: Path) -> None:
    context: Any = FakeContext()
    context.signer = Signer(public_key.with_suffix(""))
    outputs = [
        Output(DECISIONS, "h1", make("Decision", host="h1", decision_id="s/1/0", shard="s", epoch=1, seq=0)),
        Output(FALLBACKS, "h1", make("Fallbacks", host="h1", shard="s")),
        Output(FALLBACKS, "h1"),
        Output(POLICY_CYCLES, "s", make("PolicyCycles", shard="s")),
    ]
    sent: list[Any] = []
    await Publisher(context, PolicyStage, DECISIONS).publish(Operator(), outputs, sent)  # type: ignore[arg-type]
    await asyncio.gather(*sent)
    verifier = Verifier(public_key)
    assert [topic for topic, _, _ in context.sent] == [output.topic.name for output in outputs]
    accepted = [verifier.accepts(Message(1, topic, 0, 0, key, value)) for topic, key, value in context.sent]
    assert accepted == [True, True, False, True], "a tombstone carries no signature"
    value = context.sent[0][2]
    assert {**codec.decode(value, "Decision"), "signature": b""} == outputs[0].record


async def test_a_worker_believes_signed_config_alone(public_key: Path, tmp_path: Path) -> None:
    signer, verifier = Signer(public_key.with_suffix("")), Verifier(public_key)
    signed = signer.signed(CONFIG, "*", make("ActuatorConfig", host="*", version=1, at_ns=5, mode="ACT"))
    forged = make("ActuatorConfig", host="*", version=2, at_ns=6, mode="OBSERVE")
    older = signer.signed(CONFIG, "*", {**signed, "at_ns": 4})
    tables, rejected = FabricTables(), []
    with EmbeddedLog(tmp_path / "log") as log:
        for record in (signed, forged, older):
            log.put(CONFIG.name, "*", record)
        reader = GlobalTableReader(
            tables,
            {CONFIG: BEGINNING},
            KafkaSettings(bootstrap=log.bootstrap),
            lambda message, error: rejected.append(error.reason),
            verifier.check,
        )
        reading = asyncio.create_task(reader.run())
        while len(rejected) < 2:
            await asyncio.wait((reading,), timeout=0.05)
            assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert rejected == ["FORGED", "REPLAYED"]
    [record] = tables.config.all().values()
    assert record["version"] == 1
