"""Error codes of the log: they are Kafka's, and clients know each."""

from __future__ import annotations

import aiokafka.errors
import pytest
from confluent_kafka import KafkaError

from fabrictime.log.errors import Code, LogError


@pytest.mark.parametrize("code", list(Code), ids=lambda code: code.name)
def test_clients_know_the_code_by_the_same_name(code: Code) -> None:
    known = KafkaError(int(code)).name()
    assert known in (code.name, {"UNKNOWN_SERVER_ERROR": "UNKNOWN", "NONE": "NO_ERROR"}.get(code.name)) or (
        aiokafka.errors.for_code(code).errno == code
    )


def test_an_error_carries_the_code_for_the_client_and_a_text_for_the_log_line() -> None:
    error = LogError(Code.INVALID_TOPIC, "topic 'a b': not a name")
    assert (error.code, str(error)) == (17, "topic 'a b': not a name")
