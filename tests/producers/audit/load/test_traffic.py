"""Real sockets on loopback: pairs, fans and rings; wrong hellos, partners that die, hang or stay away."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.load import traffic
from producers.audit.load.traffic import RING, Flow, Plan, code_of, percentile, run

KEY = bytes(range(16))
START = b'{"run": "r1", "flow": "a/eth0>b/eth0", "kind": "load", "nonce": "1"}\n'
PARTIAL = st.sampled_from(
    [START, START + b"\n", START + '{"code": "é"}\n'.encode(), START + b'{"code": 1}\n']
)
A, B, C = "127.0.0.1", "127.0.0.2", "127.0.0.3"
NAME = "a/eth0>b/eth0"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def plans(port: int, **changes: Any) -> tuple[Plan, Plan]:
    """Return the plans of a client and a server."""
    given = {"seconds": 0.5, "rate_bps": 80e6, "meet_s": 3.0, "key_file": "", **changes}
    return tuple(  # type: ignore[return-value]
        Plan(run="r1", host=host, kind="load", port=port, flows=(flow,), **given)
        for host, flow in (("a", Flow(NAME, "b", A, B, True)), ("b", Flow(NAME, "a", B, A, False)))
    )


def together(*work: tuple[Plan, bytes]) -> list[dict[str, Any]]:
    """Run plans at the same time."""
    found: list[dict[str, Any]] = [{} for _ in work]

    def one(at: int) -> None:
        found[at] = run(*work[at])

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(work))]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
        assert not each.is_alive()
    return found


def test_a_pair_measures_both_directions_below_the_rate() -> None:
    client, server = plans(free_port())
    ours, theirs = together((client, KEY), (server, KEY))
    assert ours["errors"] == theirs["errors"] == {}
    figures = ours["flows"][NAME]
    limit = 80e6 / 8 * 0.5 * traffic.LOAD_SHARE + traffic.CHUNK_BYTES
    assert 0 < figures["sent_bytes"] == theirs["flows"][NAME]["received_bytes"] <= limit
    assert 0 < figures["received_bytes"] == theirs["flows"][NAME]["sent_bytes"] <= limit
    assert 0 < figures["send_bps"] < 160e6
    assert 0 < figures["receive_bps"] < 160e6
    assert 0 < figures["idle_p50_us"] <= figures["idle_p99_us"]
    assert figures["loaded_p99_us"] > 0


def test_the_port_is_closed_after_the_round() -> None:
    port = free_port()
    client, server = plans(port)
    together((client, KEY), (server, KEY))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((B, port), timeout=1)


def test_a_fan_shares_the_rate_among_its_receivers() -> None:
    port = free_port()
    names = {"b": (B, "a/eth0>b/eth0"), "c": (C, "a/eth0>c/eth0")}
    base = plans(port)[0]
    first = replace(base, flows=tuple(Flow(name, host, A, at, True) for host, (at, name) in names.items()))
    others = [
        replace(base, host=host, rate_bps=40e6, flows=(Flow(name, "a", at, A, False),))
        for host, (at, name) in names.items()
    ]
    ours, *_ = together((first, b""), *((each, b"") for each in others))
    assert ours["errors"] == {}
    limit = 40e6 / 8 * 0.5 * traffic.LOAD_SHARE + traffic.CHUNK_BYTES
    assert all(0 < each["sent_bytes"] <= limit for each in ours["flows"].values())


def ring(port: int, hosts: dict[str, str]) -> list[Plan]:
    names, base = list(hosts), plans(port)[0]
    found = []
    for at, host in enumerate(names):
        after, before = names[(at + 1) % len(names)], names[at - 1]
        flows = (
            Flow(f"{host}/eth0>{after}/eth0", after, hosts[host], hosts[after], True),
            Flow(f"{before}/eth0>{host}/eth0", before, hosts[host], hosts[before], False),
        )
        found.append(replace(base, host=host, kind=RING, flows=flows))
    return found


def test_a_ring_measures_its_hops() -> None:
    hosts = {"a": A, "b": B, "c": C}
    found = together(*((plan, KEY) for plan in ring(free_port(), hosts)))
    for result, (host, after) in zip(found, (("a", "b"), ("b", "c"), ("c", "a")), strict=True):
        assert result["errors"] == {}
        figures = result["flows"][f"{host}/eth0>{after}/eth0"]
        assert figures["steps"] > 3
        assert 0 < figures["hop_p50_ms"] <= figures["hop_p90_ms"] <= figures["hop_max_ms"]


def test_a_late_host_shows_in_the_hop_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One host takes its time before it answers a block; only the hop to it is long."""
    hosts = {"a": A, "b": B, "c": C}
    exactly = traffic._exactly

    def slowly(sock: socket.socket, count: int) -> bool:
        got = exactly(sock, count)
        if count == traffic.BLOCK_BYTES and sock.getsockname()[0] == B:
            threading.Event().wait(0.03)
        return got

    monkeypatch.setattr(traffic, "_exactly", slowly)
    found = together(*((plan, KEY) for plan in ring(free_port(), hosts)))
    hops = [next(iter(each["flows"].values()))["hop_p50_ms"] for each in found]
    assert hops[0] >= 30
    assert max(hops[1:]) < hops[0]


def test_another_key_is_refused_by_both_ends() -> None:
    client, server = plans(free_port(), meet_s=0.6)
    ours, theirs = together((client, KEY), (server, bytes(16)))
    assert "has another key" in ours["errors"][NAME]
    assert "did not come within 0.6 s" in theirs["errors"][NAME]
    assert theirs["refused"] > 0
    assert ours["flows"] == theirs["flows"] == {}


def test_another_run_is_refused() -> None:
    client, server = plans(free_port(), meet_s=0.6)
    ours, theirs = together((replace(client, run="r2"), KEY), (server, KEY))
    assert "refused by b" in ours["errors"][NAME]
    assert NAME in theirs["errors"]


def test_a_partner_that_stays_away_is_named() -> None:
    port = free_port()
    client, server = plans(port, meet_s=0.3)
    assert run(client, KEY)["errors"] == {NAME: f"b at {B} port {port}: Connection refused"}
    assert run(server, KEY)["errors"] == {NAME: f"a at {A} did not come within 0.3 s"}


def test_a_port_in_use_is_named() -> None:
    with socket.create_server((B, 0)) as taken:
        port = taken.getsockname()[1]
        server = plans(port, meet_s=0.3)[1]
        assert run(server, KEY)["errors"] == {NAME: f"{B} port {port}: Address already in use"}


@contextlib.contextmanager
def serving(plan: Plan) -> Iterator[list[dict[str, Any]]]:
    """Run a server plan in the background, and yield its result, which is there at the end."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(run(plan, KEY)))
    thread.start()
    yield found
    thread.join(20)
    assert not thread.is_alive()


def connected(port: int, near: str) -> socket.socket:
    end_s = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection((B, port), timeout=2, source_address=(near, 0))
        except OSError:
            assert time.monotonic() < end_s
            threading.Event().wait(0.02)


@given(
    st.binary(max_size=200)
    | st.sampled_from([b"[]\n", b'{"run": "r1"}\n', b"[" * 1000 + b"\n", b"1\n"])
    | PARTIAL
)
def test_any_hello_is_refused_or_proven(text: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        near.sendall(text)
        near.shutdown(socket.SHUT_WR)
        far.settimeout(1)
        server = plans(1)[1]
        with pytest.raises((ValueError, traffic.Failed)):
            traffic._admit(far, server, server.flows, KEY)
        far.close()
        with contextlib.suppress(ConnectionResetError):
            assert len(near.recv(4096)) < 200, "an answer must not be much larger than its request"


def test_strangers_get_nothing_and_the_partner_is_served_all_the_same() -> None:
    port = free_port()
    client, server = plans(port)
    with serving(server) as found:
        with connected(port, C) as stranger:
            assert stranger.recv(10) == b""
        with connected(port, A) as pretender:
            pretender.sendall(b'{"run": "r1", "flow": "x", "kind": "load", "nonce": "0"}\n')
            assert pretender.recv(10) == b""
        assert run(client, KEY)["errors"] == {}
    assert found[0]["errors"] == {}
    assert found[0]["refused"] == 2


def test_a_receiver_gives_up_after_many_wrong_hellos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_REFUSED", 3)
    port = free_port()
    with serving(plans(port, meet_s=20.0)[1]) as found:
        for _ in range(3):
            with connected(port, C) as stranger:
                assert stranger.recv(10) == b""
    assert found[0]["refused"] == 3
    assert NAME in found[0]["errors"]


def greeted(plan: Plan, kind: str) -> socket.socket:
    sock = connected(plan.port, A)
    traffic._greet(sock, plan, plan.flows[0], kind, KEY)
    return sock


@pytest.mark.parametrize("is_hung", [False, True])
def test_a_client_that_dies_or_hangs_ends_the_server(is_hung: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "STALLED_S", 0.3)
    client, server = plans(free_port(), meet_s=1.0)
    since_s = time.monotonic()
    with serving(server) as found:
        load, echo = (greeted(client, kind) for kind in traffic.KINDS)
        load.sendall(bytes(1000))
        if not is_hung:
            load.close()
            echo.close()
    assert time.monotonic() - since_s < server.limit_s
    assert found[0]["errors"][NAME].startswith("a stopped: ")
    load.close()
    echo.close()


@pytest.mark.parametrize("step", ["hello", "echo", "load"])
def test_a_server_that_hangs_ends_the_client(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "STALLED_S", 0.3)
    monkeypatch.setattr(traffic, "HELLO_S", 0.3)
    port = free_port()
    client, server = plans(port, meet_s=1.0)
    released = threading.Event()
    hang: Callable[..., Any] = lambda *given: released.wait(20) and {}  # noqa: E731
    if step == "load":
        monkeypatch.setattr(traffic, "receive", hang)
    if step == "echo":
        monkeypatch.setattr(traffic, "_server", hang)
    if step == "hello":
        monkeypatch.setattr(traffic, "_admit", hang)
    thread = threading.Thread(target=run, args=(server, KEY), daemon=True)
    thread.start()
    since_s = time.monotonic()
    found = run(client, KEY)
    assert time.monotonic() - since_s < client.limit_s
    assert NAME in found["errors"]
    assert found["flows"] == {}
    released.set()
    thread.join(20)


def test_as_a_process_it_prints_json_and_ends(tmp_path: Any) -> None:
    key = tmp_path / "key"
    key.write_text(KEY.hex())
    key.chmod(0o600)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "producers.audit.load.traffic", plan.text()],
            stdout=subprocess.PIPE,
            text=True,
        )
        for plan in plans(free_port(), key_file=str(key), meet_s=10.0)
    ]
    ours, theirs = (json.loads(each.communicate(timeout=30)[0]) for each in started)
    assert ours["errors"] == theirs["errors"] == {}
    assert ours["flows"][NAME]["sent_bytes"] > 0


def test_a_code_is_of_its_role_and_text() -> None:
    codes = {
        code_of(key, role, parts)
        for key in (KEY, b"")
        for role in ("client", "server")
        for parts in (["r", "a"], ["ra", ""], ["r", "b"])
    }
    assert len(codes) == 12


def test_plans_are_text_and_back() -> None:
    for plan in plans(9318):
        assert Plan.of(plan.text()) == plan
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0], 0.99) == 1.0
