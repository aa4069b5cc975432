"""Converts the worker process's messages to records of an RDMA prober, and records to messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from native.core.columns import ProbeColumns
from producers.probe.rdma.worker_process import Batch, Ready, UdPeerLine
from producers.settings import NicSettings
from schemas.ids import clock_id, nic_id
from schemas.records import GidKind, Nic, Stamp

PORT: Final = 4791
"""UDP port of RoCE v2. It is announced on other networks too, because 0 would mean that the NIC does not
answer."""


def nic_record(
    nic: NicSettings,
    ready: Ready,
    *,
    run: int,
    since_ns: int,
    announced_ns: int,
    stamp_error_ns: int,
) -> Nic:
    """Return the announcement of an RDMA prober. `nic.device` is the RDMA device.

    The announcement has no address, so that UDP probers do not probe the NIC.
    """
    hardware, sure = ready["hardware"], ready["sure"]
    return {
        "nic": nic_id(nic.host, nic.device),
        "host": nic.host,
        "device": nic.device,
        "shard": nic.shard,
        "rail": nic.rail,
        "rack": nic.rack,
        "addresses": [],
        "probe_port": PORT,
        "clock": clock_id(nic.host, nic.device) if hardware else clock_id(nic.host),
        "stamp": Stamp.HARDWARE if hardware else Stamp.USER,
        "speed_bps": ready["speed_bps"],
        "mtu_bytes": None,
        "run": run,
        "since_ns": since_ns,
        "announced_ns": announced_ns,
        "capabilities": ["probe.ud"] if sure else ["probe.ud", "probe.ud.paths-unsure"],
        "path_ports": list(ready["paths"]) if ready["kind"] == GidKind.ROCE_V2 else [],
        "first_hop": None,
        "slot_ns": 0,
        "slot_probes": 0,
        "ud": {
            "kind": GidKind(ready["kind"]),
            "gid": ready["gid"],
            "lid": ready["lid"],
            "path_bits": ready["path_bits"],
            "queue_pairs": list(ready["numbers"]),
        },
        "stamp_error_ns": stamp_error_ns,
        "networks": [],
        "egress": None,
        "simulation_pace": None,
    }


def peers_of(records: Iterable[Nic], kind: str) -> dict[str, UdPeerLine]:
    """Return, by name, the NICs on networks of this `kind`, as the worker process reads them.

    Each entry holds name, GID in hexadecimal, LID, number of free LID bits and queue pair numbers.
    """
    lines: dict[str, UdPeerLine] = {}
    for record in records:
        ud = record["ud"]
        if ud is None or ud["kind"] != kind or not ud["queue_pairs"] or not _is_gid(ud["gid"]):
            continue
        lines[record["nic"]] = (
            record["nic"],
            ud["gid"],
            ud["lid"],
            ud["path_bits"],
            tuple(ud["queue_pairs"]),
        )
    return lines


def columns_of(nic: str, run: int, batch: Batch, dscp: int = 0) -> ProbeColumns:
    """Convert a worker's batch to columns, from which `ProbeBatch` is encoded.

    `dscp` is the traffic class of the batch's probes.
    """
    groups = batch["groups"]
    counts = [len(group[4]) for group in groups]
    samples = [[value for group in groups for value in group[column]] for column in (4, 5, 6, 7)]
    sent, forward, turnaround, reverse = (np.array(values, np.int64) for values in samples)
    start = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    forward_ce, reverse_ce = (
        np.array(
            [at + i for at, group in zip(start.tolist(), groups, strict=False) for i in group[column]],
            np.int64,
        )
        for column in (9, 10)
    )
    return ProbeColumns(
        nic=nic,
        run=run,
        batch=batch["number"],
        clock_ns=batch["clock_ns"],
        system_ns=batch["system_ns"],
        peers=[group[0] for group in groups],
        path=np.array([group[1] for group in groups], np.int32),
        spacing_ns=np.zeros(len(groups), np.int32),
        lost=np.array([group[2] for group in groups], np.int32),
        no_t3=np.array([group[3] for group in groups], np.int32),
        start=start,
        sent=sent,
        forward=forward,
        turnaround=turnaround,
        reverse=reverse,
        dscp=np.full(len(groups), dscp, np.int32),
        ecn=np.array([group[8] for group in groups], np.int32),
        forward_ce=forward_ce,
        reverse_ce=reverse_ce,
    )


def _is_gid(text: str) -> bool:
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)
