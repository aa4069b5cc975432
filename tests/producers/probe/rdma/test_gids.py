"""Ports, GIDs and paths, from trees as sysfs has them: a Soft-RoCE device, an mlx5 one, one of InfiniBand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictime_client.rdma import source_port_of
from producers.probe.rdma.gids import (
    choose_gid,
    choose_port,
    label_of_port,
    netdevs_of,
    plan_paths,
    port_of_number,
    read_ports,
    target_lid,
)

LINK_LOCAL = "fe80:0000:0000:0000:0202:03ff:fe04:0506"
OF_10_1_0_1 = "0000:0000:0000:0000:0000:ffff:0a01:0001"
NOBODY = "0000:0000:0000:0000:0000:0000:0000:0000"
SOFT_ROCE, MELLANOX, OTHER = 0xFFFFFF, 0x02C9, 0x14E4


def tree(
    sysfs: Path, device: str, number: int, gids: list[tuple[str, str]], netdev: str = "eth0", **more: str
) -> None:
    port = sysfs / "class/infiniband" / device / "ports" / str(number)
    texts = {
        "state": "4: ACTIVE",
        "link_layer": "Ethernet",
        "lid": "0x0",
        "lid_mask_count": "0",
        "rate": "100 Gb/sec (4X EDR)",
    } | more
    for index, (gid, kind) in enumerate(gids):
        texts |= {f"gids/{index}": gid, f"gid_attrs/types/{index}": kind, f"gid_attrs/ndevs/{index}": netdev}
    for name, text in texts.items():
        path = port / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_of_a_roce_port_the_addresss_own_entry_of_v2_is_taken(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "mlx5_0",
        1,
        [
            (LINK_LOCAL, "IB/RoCE v1"),
            (LINK_LOCAL, "RoCE v2"),
            (OF_10_1_0_1, "IB/RoCE v1"),
            (OF_10_1_0_1, "RoCE v2"),
            (NOBODY, "RoCE v2"),
        ],
    )
    (port,) = read_ports("mlx5_0", tmp_path)
    assert (port.speed_bps, port.active, port.infiniband) == (100_000_000_000, True, False)
    assert len(port.gids) == 4, "an entry of nobody's is none"
    gid = choose_gid(port, "10.1.0.1")
    assert (gid.place, gid.kind, gid.netdev) == (3, "ROCE_V2", "eth0")
    assert choose_gid(port, None).place == 3, "what is more than link-local goes first"
    with pytest.raises(ValueError, match=r"mlx5_0 port 1: no GID of address 10\.9\.9\.9"):
        choose_gid(port, "10.9.9.9")
    assert netdevs_of("mlx5_0", tmp_path) == {"eth0"}


def test_of_infiniband_the_first_gid_and_the_lid_with_its_path_bits(tmp_path: Path) -> None:
    tree(tmp_path, "mlx5_1", 1, [(LINK_LOCAL, "")], state="1: DOWN")
    tree(
        tmp_path,
        "mlx5_1",
        2,
        [(LINK_LOCAL, "IB/RoCE v1")],
        link_layer="InfiniBand",
        lid="0x18",
        lid_mask_count="2",
        rate="2.5 Gb/sec (1X SDR)",
    )
    port = choose_port("mlx5_1", read_ports("mlx5_1", tmp_path))
    assert (port.number, port.lid, port.path_bits, port.speed_bps) == (2, 24, 2, 2_500_000_000)
    gid = choose_gid(port, "10.1.0.1")
    assert (gid.place, gid.kind) == (0, "INFINIBAND")
    paths = plan_paths(gid.kind, MELLANOX, [80, 81, 82, 83, 84], 50_176, port.path_bits)
    assert [path.value for path in paths] == [0, 1, 2, 3, 4]
    assert [path.path_bits for path in paths] == [0, 1, 2, 3, 0]
    assert [target_lid(40, 1, path.index) for path in paths] == [40, 41, 40, 41, 40]
    assert target_lid(0, 2, 1) == 0, "a network without LIDs"


def test_missing_devices_ports_and_gids_give_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rxe9: no such RDMA device"):
        choose_port("rxe9", read_ports("rxe9", tmp_path))
    tree(tmp_path, "rxe0", 1, [], state="1: DOWN")
    with pytest.raises(ValueError, match="rxe0: no port is active"):
        choose_port("rxe0", read_ports("rxe0", tmp_path))
    with pytest.raises(ValueError, match="rxe0: no port 3, expected one of 1"):
        choose_port("rxe0", read_ports("rxe0", tmp_path), 3)
    with pytest.raises(ValueError, match="rxe0 port 1: no GID, is its network device up"):
        choose_gid(choose_port("rxe0", read_ports("rxe0", tmp_path), 1), None)


def test_each_kind_of_device_has_its_own_source_of_entropy() -> None:
    soft = plan_paths("ROCE_V2", SOFT_ROCE, [17, 18, 19, 20], 50_176)
    # what Soft-RoCE of kernel 6.1 puts on the wire for these numbers, seen in the guest
    assert [path.value for path in soft] == [57_236, 63_494, 53_368, 59_626]
    assert {path.flow_label for path in soft} == {0}
    labelled = plan_paths("ROCE_V2", MELLANOX, [300, 301, 302], 50_176)
    assert [path.value for path in labelled] == [50_176, 50_177, 50_178]
    assert [source_port_of(path.flow_label) for path in labelled] == [50_176, 50_177, 50_178]
    assert all(path.sure for path in soft + labelled)
    assert not any(path.sure for path in plan_paths("ROCE_V2", OTHER, [1, 2], 50_176))
    assert [path.value for path in plan_paths("ROCE_V1", MELLANOX, [9, 10], 50_176)] == [0, 1]


def test_labels_give_the_ports_that_actuators_move_to() -> None:
    for port in range(0xC000, 0x10000):
        label = label_of_port(port)
        assert 0 < label < 1 << 20
        assert source_port_of(label) == port


def test_of_two_queue_pairs_with_one_port_one_is_left_out() -> None:
    ports: dict[int, int] = {}
    first, second = next(
        (ports[port], number)
        for number in range(16, 1 << 24)
        if ports.setdefault(port := port_of_number(number), number) != number
    )
    paths = plan_paths("ROCE_V2", SOFT_ROCE, [first, second, second + 1], 50_176)
    assert [(path.index, path.number) for path in paths] == [(0, first), (1, second + 1)]
