"""The guest's fabric: RDMA NICs in the initial namespace, a leaf each, spines between, all real veths.

    a0, a1 - leaf A - spine 1, 2, 3 - leaf B - b0

rxe inside a namespace connects but cannot send, so the NICs stand together in the initial one, and policy
routing makes each behave as a host of its own: what leaves by a NIC takes that NIC's leaf, what comes in by a
NIC is local, and nothing between two NICs takes the short way. Routers are namespaces that hash over the
spines by address and port, as switches do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

NICS = {"a0": ("10.1.0.1", "leafa"), "a1": ("10.1.1.1", "leafa"), "b0": ("10.2.0.1", "leafb")}
SPINES = ("spine1", "spine2", "spine3")
LEAVES = ("leafa", "leafb")
FLEET = "10.0.0.0/8"


_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


def batch(program: str, lines: list[str], router: str | None = None) -> None:
    """Run many lines of ip, tc or rdma in one process. Raises RuntimeError with what it said."""
    where = ["-n", router] if router else []
    many = "-b" if program == "rdma" else "-batch"
    done = subprocess.run(
        [program, *where, many, "-"],
        input="\n".join([*lines, ""]),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{program} {router or ''}: {done.stderr.strip() or done.returncode}")


@contextlib.contextmanager
def inside(router: str) -> Iterator[None]:
    """Stand in a router's namespace."""
    with open("/proc/self/ns/net") as home, open(f"/run/netns/{router}") as there:
        if _libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), router)
        try:
            yield
        finally:
            _libc.setns(home.fileno(), _CLONE_NEWNET)


def sysctl(values: dict[str, str]) -> None:
    for name, value in values.items():
        Path("/proc/sys/net", name).write_text(value)


def mac(host: str, port: str) -> str:
    """A MAC address that both ends of a link can tell without asking."""
    return "02:" + ":".join(f"{byte:02x}" for byte in hash_of(f"{host}:{port}"))


def hash_of(text: str) -> bytes:
    value = 0
    for byte in text.encode():
        value = (value * 131 + byte) % (1 << 40)
    return value.to_bytes(5, "big")


def build() -> None:
    """Make NICs, leaves, spines, routes and neighbours, then the RDMA devices."""
    batch("ip", [f"netns add {router}" for router in (*LEAVES, *SPINES)])
    todo: dict[str | None, list[str]] = {router: ["link set lo up"] for router in (None, *LEAVES, *SPINES)}
    cables = []
    for side, leaf in enumerate(LEAVES):
        for number, spine in enumerate(SPINES):
            up, down = f"10.9.{number}.{side * 2 + 1}", f"10.9.{number}.{side * 2 + 2}"
            cables.append(f"link add {spine} netns {leaf} type veth peer name {leaf} netns {spine}")
            _port(todo[leaf], leaf, spine, up, down, mac(spine, leaf))
            _port(todo[spine], spine, leaf, down, up, mac(leaf, spine))
            todo[spine].append(f"route add 10.{side + 1}.0.0/16 via {up} dev {leaf}")
        hops = " ".join(f"nexthop via 10.9.{n}.{side * 2 + 2} dev {s}" for n, s in enumerate(SPINES))
        todo[leaf].append(f"route add {FLEET} {hops}")
    for number, (nic, (address, leaf)) in enumerate(NICS.items()):
        table, gateway = 1000 + number, f"10.8.{number}.1"
        cables.append(f"link add {nic} type veth peer name {nic} netns {leaf}")
        _port(todo[leaf], leaf, nic, gateway, address, mac("host", nic))
        todo[None] += [
            f"link set {nic} address {mac('host', nic)} mtu 4200 up",
            f"address add {address}/32 dev {nic}",
            f"neighbour add {gateway} lladdr {mac(leaf, nic)} dev {nic} nud permanent",
            f"route add {gateway} dev {nic} scope link table {table}",
            f"route add default via {gateway} dev {nic} onlink src {address} table {table}",
            f"rule add pref 10 iif {nic} lookup local",
            f"rule add pref 20 oif {nic} lookup {table}",
            *(
                f"rule add pref 30 from {address} to {other} lookup {table}"
                for other, _ in NICS.values()
                if other != address
            ),
        ]
    todo[None] += ["rule add pref 100 lookup local", "rule del pref 0 lookup local"]
    routing = {"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0"}
    for router in (*LEAVES, *SPINES):
        with inside(router):
            sysctl(
                routing
                | {
                    "ipv4/ip_forward": "1",
                    "ipv4/fib_multipath_hash_policy": "1",
                    "ipv6/conf/all/disable_ipv6": "1",
                    "ipv6/conf/default/disable_ipv6": "1",
                }
            )
    here = (("accept_local", "1"), ("arp_ignore", "1"), ("arp_announce", "2"))
    sysctl(
        routing
        | {f"ipv4/conf/{interface}/{key}": value for interface in ("all", "default") for key, value in here}
    )
    batch("ip", cables)
    for router, lines in todo.items():
        batch("ip", lines, router)
    # The kernel patches its receive path where a first ingress qdisc comes or the last one goes. A processor
    # that QEMU emulates hangs for good at the patched jump if packets flow meanwhile, so all stay there.
    for spine in SPINES:
        batch("tc", [f"qdisc add dev {leaf} ingress" for leaf in LEAVES], spine)
    batch("rdma", [f"link add rxe_{nic} type rxe netdev {nic}" for nic in NICS])


def _port(lines: list[str], router: str, port: str, own: str, other: str, other_mac: str) -> None:
    lines += [
        f"link set {port} address {mac(router, port)} mtu 4200 up",
        f"address add {own}/32 dev {port}",
        f"route add {other}/32 dev {port}",
        f"neighbour add {other} lladdr {other_mac} dev {port} nud permanent",
    ]


def rx_packets(router: str, port: str) -> int:
    """Packets that came in at a router's port since it was made."""
    with inside(router):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    for line in lines:
        name, _, rest = line.partition(":")
        if name.strip() == port:
            return int(rest.split()[1])
    raise RuntimeError(f"{router}: no port {port}")


def blackhole(spine: str, leaf: str, on: bool) -> None:
    """Lose silently all that a leaf sends to a spine: carrier and routes stay as they are."""
    act = f"add dev {leaf} parent ffff: matchall action drop" if on else f"del dev {leaf} parent ffff:"
    batch("tc", [f"filter {act}"], spine)


def gid_index(device: str, address: str) -> int:
    """The index of the GID that is an IPv4 address."""
    wanted = "0000:0000:0000:0000:0000:ffff:" + ":".join(
        f"{int(high):02x}{int(low):02x}" for high, low in zip(*[iter(address.split("."))] * 2, strict=True)
    )
    folder = Path(f"/sys/class/infiniband/{device}/ports/1/gids")
    for name in sorted(os.listdir(folder), key=int):
        if (folder / name).read_text().strip() == wanted:
            return int(name)
    raise RuntimeError(f"{device}: no GID for {address}")
