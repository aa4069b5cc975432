"""The log's address is one that librdkafka can resolve, also on a host without a routed IPv4 address."""

import ctypes
import socket
import subprocess
import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient

from fabrictime.commands.up.ports import log_host
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
