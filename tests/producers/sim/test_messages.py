"""Messages of simulated agents: records, Avro bodies and tombstones."""

from __future__ import annotations

import numpy as np
import pytest

from native.core import ProbeColumns, encode_probe_batch
from producers.sim.messages import SimMessage
from schemas import codec
from schemas.topics import INVENTORY, PROBES
from tests.records import make


def test_a_record_is_encoded_for_the_wire() -> None:
    record = make("Nic", nic="h1/eth0", host="h1", device="eth0")
    message = SimMessage(INVENTORY, "h1/eth0", 1, record)
    assert codec.decode(message.value() or b"", "Nic") == message.record() == record
    with pytest.raises(ValueError, match="expected a ProbeBatch"):
        message.columns()


def test_a_body_gets_the_header_of_its_schema() -> None:
    columns = ProbeColumns(
        "h1/eth0", run=7, peers=["h2/eth0"], path=np.array([9320], np.int32), lost=np.array([2], np.int32),
        spacing_ns=np.zeros(1, np.int32), no_t3=np.zeros(1, np.int32), start=np.zeros(2, np.int64),
    )  # fmt: skip
    message = SimMessage(PROBES, "h1/eth0", 1, body=encode_probe_batch(columns))
    assert message.record() == codec.decode(message.value() or b"", "ProbeBatch")
    assert message.record()["samples"][0]["lost"] == 2
    assert message.columns().peers == ["h2/eth0"]


def test_a_tombstone_has_no_value() -> None:
    assert SimMessage(INVENTORY, "h1/eth0", 1, is_tombstone=True).value() is None
