"""Wrong input has an error type of its own, which commands show in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from actuators.nodes.service import alone
from fabrictime.exports.formats import BadExport
from fabrictime.runtime.config import ConfigError
from fabrictime.runtime.status import InUse, Lock, NotReady, read
from schemas.input_error import InputError
from schemas.kafka.admin import GroupsError, TopicsError
from schemas.kafka.publisher import PublishFailed
from schemas.kafka.reader import TopicMissing
from schemas.kafka.settings import KafkaSettings
from schemas.log_time import append_ns_of
from schemas.secret_file import SecretFileError
from schemas.settings_file import BadFile
from schemas.topology import TopologyError
from streams.audit.hosts.baseline import BaselineError
from streams.audit.results import Scope
from streams.runtime.thresholds import check_value

MISSING = Path("/missing")


@pytest.mark.parametrize(
    "kind",
    [
        BadExport,
        BadFile,
        BaselineError,
        ConfigError,
        GroupsError,
        InUse,
        NotReady,
        PublishFailed,
        SecretFileError,
        TopicMissing,
        TopicsError,
        TopologyError,
    ],
)
def test_an_error_for_display_is_an_input_error(kind: type[Exception]) -> None:
    assert issubclass(kind, InputError)
    assert issubclass(InputError, ValueError), "a caller that reads foreign text needs one type"


def secret() -> None:
    KafkaSettings(sasl_mechanism="PLAIN", sasl_username="u", sasl_password_file=MISSING).confluent_options()


def second_process(folder: Path) -> None:
    with alone(folder / "lock"), alone(folder / "lock"):
        pass


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda folder: secret(), "sasl_password_file /missing: No such file"),
        (
            lambda folder: KafkaSettings(tls=True, tls_ca_file=MISSING).aiokafka_options(),
            "TLS files /missing",
        ),
        (lambda folder: append_ns_of("fabric.links", 0, 1), "expected message.timestamp.type=LogAppendTime"),
        (lambda folder: check_value("nothing", 1.0), "no such threshold"),
        (lambda folder: Scope.of([]), "no audit result"),
        (lambda folder: Lock(MISSING / "/proc/1/x"), "expected a directory that we can make"),
        (lambda folder: read(folder), "no `fabrictime up` is running"),
        (second_process, "another process acts on nodes"),
    ],
)
def test_wrong_settings_and_services_are_input_errors(
    tmp_path: Path, wrong: Callable[[Path], object], text: str
) -> None:
    with pytest.raises(InputError, match=text) as caught:
        wrong(tmp_path)
    assert "\n" not in str(caught.value)
