"""The log's address is one that librdkafka can resolve, also on a host without a routed IPv4 address."""

import ctypes
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from fabrictime.commands.up import ports
from fabrictime.commands.up.ports import log_host
from fabrictime.runtime.config import load
from schemas.input_error import InputError
from schemas.kafka.settings import KafkaSettings
from tests.embedded_log import EmbeddedLog
from tests.waiting import wait_until

CLONE_NEWNET = 0x40000000


def is_hidden(address: str) -> bool:
    """Return whether the resolver hides a numeric address, as librdkafka asks it."""
    try:
        socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except OSError:
        return True
    return False


def test_a_host_with_other_addresses_of_ipv6_only(inside):
    def body():
        assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        before = log_host("127.0.0.1")
        subprocess.run(["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"], check=True)
        for device in ("v0", "v1"):
            subprocess.run(["ip", "link", "set", device, "up"], check=True)
        wait_until(lambda: is_hidden("127.0.0.1"), 10)
        host = log_host("127.0.0.1")
        with EmbeddedLog(Path(tempfile.mkdtemp()), partitions=2, host=host) as log:
            settings = KafkaSettings(bootstrap=f"[{host}]:{log.port}")
            topics = AdminClient(settings.confluent_options()).list_topics(timeout=10).topics
        return before, host, len(topics) > 10

    assert inside(body) == ("127.0.0.1", "::1", True)


def test_metrics_take_the_default_port_and_a_free_one_if_it_is_taken(tmp_path, monkeypatch):
    def port_of(**metrics):
        tables = {name: {"port": 0} for name in ("log", "history", "web")}
        config = load(None, {**tables, "up": {"data_directory": str(tmp_path)}, "metrics": metrics})
        return ports.with_ports(config).metrics.port

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        default = listener.getsockname()[1]
        monkeypatch.setattr(ports, "DEFAULT_PORT", default)
        assert port_of() not in (0, None, default)
        with pytest.raises(InputError, match=rf"metrics\.port {default}: in use by"):
            port_of(port=default)
    assert port_of() == default
    assert port_of(enabled=False) is None
