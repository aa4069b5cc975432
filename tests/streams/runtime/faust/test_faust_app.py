"""The Faust app has the cluster's security."""

from __future__ import annotations

from pathlib import Path

import pytest
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from schemas.kafka import KafkaSettings
from streams.runtime.faust.faust_app import build_app
from streams.runtime.settings import StreamSettings


@pytest.mark.parametrize(
    ("tls", "mechanism", "more"),
    [
        (False, None, {}),
        (True, None, {}),
        (False, "PLAIN", {}),
        (True, "SCRAM-SHA-512", {}),
        (True, "OAUTHBEARER", {"oauth_token_url": "https://id/token"}),
    ],
)
def test_faust_connects_with_the_same_options_as_aiokafka(tmp_path: Path, tls, mechanism, more) -> None:
    password = tmp_path / "password"
    password.write_text("s3cret")
    if mechanism is not None:
        more = {**more, "sasl_username": "me", "sasl_password_file": password}
    kafka = KafkaSettings(bootstrap="a:1,b:2", tls=tls, sasl_mechanism=mechanism, **more)
    app = build_app("test", StreamSettings(kafka=kafka), tmp_path)
    found = credentials_to_aiokafka_auth(app.conf.broker_credentials)
    expected = {"security_protocol": "PLAINTEXT", **kafka.aiokafka_options()}
    del expected["bootstrap_servers"]
    assert app.conf.consumer_metadata_max_age_ms == expected.pop("metadata_max_age_ms")
    assert {key: value for key, value in found.items() if value is not None}.keys() == expected.keys()
    for key in expected.keys() - {"ssl_context", "sasl_oauth_token_provider"}:
        assert found[key] == expected[key]
    assert [str(url) for url in app.conf.broker] == ["kafka://a:1", "kafka://b:2"]
    assert "s3cret" not in repr(app.conf.broker_credentials)
