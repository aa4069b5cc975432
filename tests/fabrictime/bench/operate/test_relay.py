"""The relay of a port into a namespace."""

import os
import socket
import threading

from fabrictime.bench.operate._relay import relay
from producers.netns import in_netns
from tests.producers.audit.host.namespaces import named_namespaces


def test_bytes_pass_in_both_directions_and_a_close_passes():
    name = f"ft-relay-{os.getpid()}"
    with named_namespaces(name), socket.create_server(("127.0.0.1", 0)) as server:
        netns, port = f"/run/netns/{name}", server.getsockname()[1]
        from pyroute2 import NetNS

        with NetNS(name) as ip:
            ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")

        def answer():
            inner, _ = server.accept()
            with inner:
                inner.sendall(inner.recv(16).upper() * 1000)

        thread = threading.Thread(target=answer)
        thread.start()
        with relay(netns, port):
            client = in_netns(netns, lambda: socket.create_connection(("127.0.0.1", port), 10))
            with client, client.makefile("rb") as stream:
                client.sendall(b"hello")
                assert stream.read() == b"HELLO" * 1000
        thread.join(10)
